/* Calls that are not recorded; the first argument says which. */
#include <mpi.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int rank, size, other;
    double room[4] = {0};
    MPI_Win window;
    MPI_Comm made, half;
    MPI_File file;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(how, "window") == 0)
        MPI_Win_create(room, sizeof room, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    if (strcmp(how, "file") == 0)
        MPI_File_open(MPI_COMM_WORLD, "made", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    if (strcmp(how, "spawn") == 0)
        MPI_Comm_spawn("true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &made, MPI_ERRCODES_IGNORE);
    if (strcmp(how, "between") == 0) {
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &made);
    }
    if (strcmp(how, "graph") == 0)
        MPI_Graph_create(MPI_COMM_WORLD, 2, (int[]){1, 2}, (int[]){1, 0}, 0, &made);
    other = (rank + 1) % size;
    if (strcmp(how, "neighbours") == 0)
        MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &rank, (int[]){1}, &other, (int[]){1}, MPI_INFO_NULL, 0, &made);
    MPI_Finalize();
    return 0;
}
