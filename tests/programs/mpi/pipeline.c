/* A pipeline: blocks go from rank to rank, in persistent requests and by Sendrecv_replace, with Probe and Test. */
#include "result.h"

enum { BLOCK = 500 };

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    const int blocks = argc > 1 ? atoi(argv[1]) : 20, work = argc > 2 ? atoi(argv[2]) : 10;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double in[BLOCK], out[BLOCK], sum = 0;
    MPI_Request from = MPI_REQUEST_NULL, to = MPI_REQUEST_NULL;
    if (rank > 0)
        MPI_Recv_init(in, BLOCK, MPI_DOUBLE, rank - 1, 5, MPI_COMM_WORLD, &from);
    if (rank + 1 < size)
        MPI_Send_init(out, BLOCK, MPI_DOUBLE, rank + 1, 5, MPI_COMM_WORLD, &to);
    for (int block = 0; block < blocks; block++) {
        if (rank > 0) {
            int done = 0;
            MPI_Start(&from);
            while (!done)
                MPI_Test(&from, &done, MPI_STATUS_IGNORE);
        } else {
            for (int i = 0; i < BLOCK; i++)
                in[i] = sin(block * BLOCK + i);
        }
        for (int turn = 0; turn < work; turn++)
            for (int i = 0; i < BLOCK; i++)
                out[i] = in[i] = 0.9 * in[i] + 0.1 * cos(in[(i + 1) % BLOCK]);
        if (rank + 1 < size) {
            MPI_Start(&to);
            MPI_Wait(&to, MPI_STATUS_IGNORE);
        }
        sum += out[block % BLOCK];
    }
    if (from != MPI_REQUEST_NULL)
        MPI_Request_free(&from);
    if (to != MPI_REQUEST_NULL)
        MPI_Request_free(&to);
    double ring = sum;
    MPI_Status status;
    for (int turn = 0; turn < size; turn++) {
        MPI_Sendrecv_replace(&ring, 1, MPI_DOUBLE, (rank + 1) % size, 6, (rank + size - 1) % size, 6, MPI_COMM_WORLD,
                             &status);
        sum += ring / (turn + 2);
    }
    if (rank == 0) {
        for (int n = 1; n < size; n++) {
            int count;
            MPI_Probe(n, 9, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_CHAR, &count);
            char *text = malloc(count);
            MPI_Recv(text, count, MPI_CHAR, n, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            sum += count + text[count / 2];
            free(text);
        }
    } else {
        char text[64];
        MPI_Send(text, snprintf(text, sizeof text, "%a", sum), MPI_CHAR, 0, 9, MPI_COMM_WORLD);
    }
    result("pipeline", rank, (double[]){sum, ring}, 2);
    MPI_Finalize();
    return 0;
}
