// SPDX-License-Identifier: Apache-2.0
// Molecular dynamics: Lennard-Jones forces between neighbours in a list that is made anew now and then.
// Usage: molecules [STEPS]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 16, N = SIDE * SIDE * SIDE, MOST_NEAR = 256, LIST_EVERY = 20 };

static const double SPACING = 1.2, NEAR = 2.8, CUTOFF = 2.5, STEP = 0.002;
static double place[N][3], speed[N][3], force[N][3];
static int near[N][MOST_NEAR], nears[N];

static double distance(const double *a, const double *b)
{
    double sum = 0.0;
    for (int d = 0; d < 3; d++)
        sum += (a[d] - b[d]) * (a[d] - b[d]);
    return sum;
}

static void list(void)
{
    for (int i = 0; i < N; i++) {
        nears[i] = 0;
        for (int j = i + 1; j < N && nears[i] < MOST_NEAR; j++)
            if (distance(place[i], place[j]) < NEAR * NEAR)
                near[i][nears[i]++] = j;
    }
}

static double forces(void)
{
    double energy = 0.0;
    for (int i = 0; i < N; i++)
        force[i][0] = force[i][1] = force[i][2] = 0.0;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < nears[i]; k++) {
            int j = near[i][k];
            double square = distance(place[i], place[j]);
            if (square >= CUTOFF * CUTOFF)
                continue;
            double inverse = 1.0 / square, six = inverse * inverse * inverse;
            double pull = 24.0 * inverse * six * (2.0 * six - 1.0);
            energy += 4.0 * six * (six - 1.0);
            for (int d = 0; d < 3; d++) {
                double part = pull * (place[i][d] - place[j][d]);
                force[i][d] += part;
                force[j][d] -= part;
            }
        }
    return energy;
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 2000;
    if (steps < 1) {
        fprintf(stderr, "usage: %s [STEPS]\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < N; i++)
        for (int d = 0; d < 3; d++) {
            int along = d == 0 ? i / (SIDE * SIDE) : d == 1 ? i / SIDE % SIDE : i % SIDE;
            place[i][d] = SPACING * along;
            speed[i][d] = 0.5 * sin(1.0 + i * 3 + d);
        }
    double energy = 0.0;
    for (long step = 0; step < steps; step++) {
        if (step % LIST_EVERY == 0)
            list();
        energy += forces();
        for (int i = 0; i < N; i++)
            for (int d = 0; d < 3; d++) {
                speed[i][d] += STEP * force[i][d];
                place[i][d] += STEP * speed[i][d];
            }
    }
    printf("molecules %ld %.9e\n", steps, energy);
    return 0;
}
