/* Master and workers: the master takes answers from anybody, so that their order differs from run to run. */
#include "result.h"

static double work(int turns, int seed)
{
    double found = seed;
    for (int n = 0; n < turns; n++)
        found = found * 0.9999999 + sin(found);
    return found;
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    const int tasks = argc > 1 ? atoi(argv[1]) : 40, turns = argc > 2 ? atoi(argv[2]) : 2000;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double sum = 0, order = 0;
    if (rank == 0) {
        int next = 0, task;
        for (int live = size - 1; live > 0;) {
            double answer;
            MPI_Status status;
            MPI_Recv(&answer, 1, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            sum += answer;
            order = order * 1.5 + status.MPI_SOURCE;
            task = next < tasks ? next++ : -1;
            MPI_Send(&task, 1, MPI_INT, status.MPI_SOURCE, 7, MPI_COMM_WORLD);
            live -= task < 0;
        }
    } else {
        int task;
        for (double answer = 0;; answer = work(turns + task % 7 * turns, task)) {
            MPI_Send(&answer, 1, MPI_DOUBLE, 0, rank, MPI_COMM_WORLD);
            MPI_Recv(&task, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (task < 0)
                break;
            sum += answer;
        }
    }
    result("workers", rank, (double[]){sum, order}, 2);
    MPI_Finalize();
    return 0;
}
