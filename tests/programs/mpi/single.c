// SPDX-License-Identifier: Apache-2.0
// A solver of one rank that no launcher started. MPI holds sockets that listen, and shared memory, in its region.
#include <mpi.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../site.h"

enum { CELLS = 20000, ROUNDS = 50 };

static double cells[CELLS];

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

__attribute__((noipa)) static double sweep(double weight)
{
    double sum = 0;
    for (int i = 1; i + 1 < CELLS; i++) {
        cells[i] = weight * (cells[i - 1] + cells[i + 1]) / 2 + 1;
        sum += cells[i];
    }
    return sum;
}

int main(int argc, char **argv)
{
    double own, whole = 0;
    MPI_Init(&argc, &argv);
    // No daemon was started: there is no child to wait for.
    CHECK(3, waitpid(-1, NULL, WNOHANG) == -1);
    region_warm();
    region_start();
    for (int round = 0; round < ROUNDS; round++) {
        own = sweep(0.5);
        CHECK(4, MPI_Allreduce(&own, &whole, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && whole == own);
    }
    region_end();
    MPI_Finalize();
    printf("single %.6f\n", whole);
    return 0;
}
