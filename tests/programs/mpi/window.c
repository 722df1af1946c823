/* One-sided communication, which is not recorded. */
#include <mpi.h>

int main(int argc, char **argv)
{
    double room[4] = {0};
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Win_create(room, sizeof room, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
