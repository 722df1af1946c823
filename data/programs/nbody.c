// SPDX-License-Identifier: Apache-2.0
// Gravitating bodies, all pairs, leapfrog steps, the energy now and then.
// Usage: nbody [STEPS]
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BODIES = 1000, ENERGY_EVERY = 50 };

static double place[BODIES][3], speed[BODIES][3], pull[BODIES][3], mass[BODIES];

static double next_number(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static void start(void)
{
    for (int i = 0; i < BODIES; i++) {
        mass[i] = 0.5 + next_number();
        for (int axis = 0; axis < 3; axis++) {
            place[i][axis] = 100.0 * (next_number() - 0.5);
            speed[i][axis] = next_number() - 0.5;
        }
    }
}

static void forces(void)
{
    for (int i = 0; i < BODIES; i++)
        pull[i][0] = pull[i][1] = pull[i][2] = 0.0;
    for (int i = 0; i < BODIES; i++)
        for (int j = i + 1; j < BODIES; j++) {
            double dx = place[j][0] - place[i][0];
            double dy = place[j][1] - place[i][1];
            double dz = place[j][2] - place[i][2];
            double square = dx * dx + dy * dy + dz * dz + 0.01;
            double strength = 1.0 / (square * sqrt(square));
            pull[i][0] += dx * strength * mass[j];
            pull[i][1] += dy * strength * mass[j];
            pull[i][2] += dz * strength * mass[j];
            pull[j][0] -= dx * strength * mass[i];
            pull[j][1] -= dy * strength * mass[i];
            pull[j][2] -= dz * strength * mass[i];
        }
}

static void advance(double step)
{
    for (int i = 0; i < BODIES; i++)
        for (int axis = 0; axis < 3; axis++) {
            speed[i][axis] += step * pull[i][axis];
            place[i][axis] += step * speed[i][axis];
        }
}

static double energy(void)
{
    double total = 0.0;
    for (int i = 0; i < BODIES; i++) {
        total += 0.5 * mass[i] *
                 (speed[i][0] * speed[i][0] + speed[i][1] * speed[i][1] + speed[i][2] * speed[i][2]);
        for (int j = i + 1; j < BODIES; j++) {
            double dx = place[j][0] - place[i][0];
            double dy = place[j][1] - place[i][1];
            double dz = place[j][2] - place[i][2];
            total -= mass[i] * mass[j] / sqrt(dx * dx + dy * dy + dz * dz + 0.01);
        }
    }
    return total;
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 4000;
    if (steps < 1) {
        fprintf(stderr, "usage: %s [STEPS]\n", argv[0]);
        return 2;
    }
    double sum = 0.0;
    start();
    for (long step = 0; step < steps; step++) {
        forces();
        advance(0.001);
        if (step % ENERGY_EVERY == 0)
            sum += energy();
    }
    printf("nbody %ld %.9e\n", steps, sum + energy());
    return 0;
}
