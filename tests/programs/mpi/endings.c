/* Ends, or cannot be replayed, as the first argument says. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* While the first thread waits in MPI for what this sends. */
static void *send_late(void *value)
{
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    MPI_Send(value, 1, MPI_DOUBLE, 0, 7, MPI_COMM_SELF);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int rank, size, provided;
    double value = 1;
    if (strcmp(how, "threads") == 0)
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    else
        MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(how, "abort") == 0 && rank == 1)
        MPI_Abort(MPI_COMM_WORLD, 5);
    if (strcmp(how, "die") == 0 && rank == 1)
        raise(9);
    if (strcmp(how, "status") == 0) {
        MPI_Finalize();
        return 3;
    }
    if (strcmp(how, "few") == 0) {
        double many[39] = {0};
        MPI_Sendrecv_replace(many, 39, MPI_DOUBLE, (rank + 1) % size, 1, (rank + size - 1) % size, 1,
                             MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (strcmp(how, "random") == 0 || strcmp(how, "few") == 0)
        value = (double)getpid() + (double)clock();
    if (strcmp(how, "threads") == 0) {
        pthread_t other;
        pthread_create(&other, NULL, send_late, &value);
        MPI_Recv(&value, 1, MPI_DOUBLE, 0, 7, MPI_COMM_SELF, MPI_STATUS_IGNORE);
        pthread_join(other, NULL);
    }
    MPI_Send(&value, 1, MPI_DOUBLE, (rank + 1) % size, 1, MPI_COMM_WORLD);
    MPI_Recv(&value, 1, MPI_DOUBLE, (rank + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    /* Beside its recording: a file that the first run makes. */
    if (strcmp(how, "calls") == 0 && rank == 0) {
        if (access("been", F_OK) == 0)
            MPI_Barrier(MPI_COMM_SELF);
        fclose(fopen("been", "w"));
    }
    if (strcmp(how, "bottom") == 0 && size > 1) {
        MPI_Aint at;
        MPI_Datatype absolute;
        MPI_Get_address(&value, &at);
        MPI_Type_create_hindexed(1, (int[]){1}, &at, MPI_DOUBLE, &absolute);
        MPI_Type_commit(&absolute);
        if (rank == 0)
            MPI_Send(&value, 1, MPI_DOUBLE, 1, 2, MPI_COMM_WORLD);
        if (rank == 1)
            MPI_Recv(MPI_BOTTOM, 1, absolute, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
