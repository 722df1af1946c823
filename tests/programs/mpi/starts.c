/* Starts a process from MPI's first rank. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    const int status = system("echo \"preloaded:$LD_PRELOAD\"");
    MPI_Finalize();
    return status;
}
