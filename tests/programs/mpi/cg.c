/* Conjugate gradient on a tridiagonal matrix in blocks of rows: Sendrecv, Allreduce, Allgatherv, Bcast. */
#include "result.h"

static double dot(const double *a, const double *b, int n)
{
    double own = 0, all;
    for (int i = 0; i < n; i++)
        own += a[i] * b[i];
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    int rank, size, provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    int rows = argc > 1 ? atoi(argv[1]) : 1000, steps = argc > 2 ? atoi(argv[2]) : 15;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Bcast(&rows, 1, MPI_INT, 0, MPI_COMM_WORLD);
    const int own = rows / size + (rank < rows % size), before = rank ? rank - 1 : MPI_PROC_NULL,
              after = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
    double *x = calloc(own, 8), *r = calloc(own, 8), *p = calloc(own + 2, 8), *q = calloc(own, 8);
    for (int i = 0; i < own; i++)
        r[i] = p[i + 1] = 1.0 + (rank * 31 + i) % 7;
    double rho = dot(r, r, own);
    for (int step = 0; step < steps; step++) {
        MPI_Status status;
        MPI_Sendrecv(p + own, 1, MPI_DOUBLE, after, 7, p, 1, MPI_DOUBLE, before, 7, MPI_COMM_WORLD, &status);
        MPI_Sendrecv(p + 1, 1, MPI_DOUBLE, before, 8, p + own + 1, 1, MPI_DOUBLE, after, 8, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int i = 0; i < own; i++)
            q[i] = 2.5 * p[i + 1] - p[i] - p[i + 2];
        const double alpha = rho / dot(p + 1, q, own);
        for (int i = 0; i < own; i++) {
            x[i] += alpha * p[i + 1];
            r[i] -= alpha * q[i];
        }
        const double next = dot(r, r, own);
        for (int i = 0; i < own; i++)
            p[i + 1] = r[i] + next / rho * p[i + 1];
        rho = next;
    }
    int *counts = malloc(size * sizeof *counts), *places = malloc(size * sizeof *places);
    MPI_Allgather(&own, 1, MPI_INT, counts, 1, MPI_INT, MPI_COMM_WORLD);
    places[0] = 0;
    for (int n = 1; n < size; n++)
        places[n] = places[n - 1] + counts[n - 1];
    double *all = calloc(rows, 8), sum = 0;
    MPI_Allgatherv(x, own, MPI_DOUBLE, all, counts, places, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int i = 0; i < rows; i++)
        sum += all[i] * (i % 5);
    result("cg", rank, (double[]){rho, sum}, 2);
    MPI_Finalize();
    return 0;
}
