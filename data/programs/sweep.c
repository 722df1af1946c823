// SPDX-License-Identifier: Apache-2.0
// Discrete-ordinates transport in the manner of Sweep3D: for every octant and angle a
// wavefront crosses the grid from corner to corner, each cell waiting for its three upstream
// neighbours; between the sweeps the scattering source is renewed.
// Usage: sweep [ITERATIONS]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 64, ANGLES = 6 };

static double flux[N][N][N], source[N][N][N], absorption[N][N][N];
static double face_x[N][N], face_y[N][N], face_z[N][N];
static const double mu[ANGLES] = {0.23, 0.23, 0.69, 0.23, 0.69, 0.92};
static const double eta[ANGLES] = {0.23, 0.69, 0.23, 0.92, 0.69, 0.23};
static const double xi[ANGLES] = {0.94, 0.69, 0.69, 0.31, 0.23, 0.31};

static void material(void)
{
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < N; k++) {
                absorption[i][j][k] = 1.0 + 0.25 * ((i * 7 + j * 5 + k * 3) % 8);
                source[i][j][k] = (i > N / 3 && j > N / 3 && k > N / 3) ? 1.0 : 0.1;
            }
}

static void clear_faces(void)
{
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++)
            face_x[a][b] = face_y[a][b] = face_z[a][b] = 0.0;
}

static void sweep_octant(int octant, int angle)
{
    int from_x = octant & 1, from_y = octant >> 1 & 1, from_z = octant >> 2 & 1;
    clear_faces();
    for (int a = 0; a < N; a++) {
        int i = from_x ? N - 1 - a : a;
        for (int b = 0; b < N; b++) {
            int j = from_y ? N - 1 - b : b;
            for (int c = 0; c < N; c++) {
                int k = from_z ? N - 1 - c : c;
                double inflow =
                    mu[angle] * face_x[j][k] + eta[angle] * face_y[i][k] + xi[angle] * face_z[i][j];
                double total = absorption[i][j][k] + 2.0 * (mu[angle] + eta[angle] + xi[angle]);
                double phi = (source[i][j][k] + 2.0 * inflow) / total;
                double out_x = 2.0 * phi - face_x[j][k];
                double out_y = 2.0 * phi - face_y[i][k];
                double out_z = 2.0 * phi - face_z[i][j];
                // The negative-flux fixup: its branch depends on the data.
                face_x[j][k] = out_x < 0.0 ? 0.0 : out_x;
                face_y[i][k] = out_y < 0.0 ? 0.0 : out_y;
                face_z[i][j] = out_z < 0.0 ? 0.0 : out_z;
                flux[i][j][k] += phi / (8 * ANGLES);
            }
        }
    }
}

static double renew_source(void)
{
    double change = 0.0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < N; k++) {
                double fresh = 0.1 + 0.5 * flux[i][j][k];
                change += fabs(fresh - source[i][j][k]);
                source[i][j][k] = fresh;
                flux[i][j][k] = 0.0;
            }
    return change;
}

int main(int argc, char **argv)
{
    long iterations = argc > 1 ? atol(argv[1]) : 100;
    if (iterations < 1) {
        fprintf(stderr, "usage: %s [ITERATIONS]\n", argv[0]);
        return 2;
    }
    double sum = 0.0;
    material();
    for (long n = 0; n < iterations; n++) {
        for (int octant = 0; octant < 8; octant++)
            for (int angle = 0; angle < ANGLES; angle++)
                sweep_octant(octant, angle);
        sum += renew_source();
    }
    printf("sweep %ld %.9e\n", iterations, sum);
    return 0;
}
