/* MPI and OpenMP: the second thread works while the first waits for it, or both, between reductions of the first. */
#define _GNU_SOURCE
#include "result.h"
#include <omp.h>
#include <pthread.h>
#include <time.h>

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void *send(void *value)
{
    MPI_Send(value, 1, MPI_DOUBLE, 0, 1, MPI_COMM_SELF);
    return NULL;
}

int main(int argc, char **argv)
{
    const int turns = argc > 1 ? atoi(argv[1]) : 10, work = argc > 2 ? atoi(argv[2]) : 1000000;
    const int by_another = argc > 3 && strcmp(argv[3], "another") == 0;
    const int together = argc > 3 && strcmp(argv[3], "together") == 0;
    int rank, provided;
    double sum = 0, spent = 0;
    MPI_Init_thread(&argc, &argv, by_another ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int turn = 0; turn < turns; turn++) {
        double found = rank;
        if (together) {
#pragma omp parallel for num_threads(2) reduction(+ : found)
            for (int n = 0; n < work; n++)
                found += sin(n * 1e-3 + turn);
            MPI_Allreduce(&found, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            continue;
        }
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 1) {
            const double begun = seconds();
            for (int n = 0; n < work; n++)
                found = found * 0.999 + sin(n + turn);
            spent += seconds() - begun;
        }
        MPI_Allreduce(&found, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    if (by_another) {
        pthread_t thread;
        pthread_create(&thread, NULL, send, &sum);
        pthread_join(thread, NULL);
    }
    printf("spent %d %.9f\n", rank, spent);
    fflush(stdout);
    result("hybrid", rank, &sum, 1);
    MPI_Finalize();
    return 0;
}
