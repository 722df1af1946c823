/* More than 2^31 bytes in one call: many of a type, or (argument `type`) one of a type as large. Nothing is written:
   the pages are those of zeros, and a broadcast to oneself moves no data. */
#include "result.h"
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
    enum { PIECE = 1 << 23, PIECES = 257 };
    const int is_one = argc > 1 && strcmp(argv[1], "type") == 0;
    int rank, size;
    MPI_Datatype piece, whole;
    char *zeros = mmap(NULL, (size_t)PIECE * PIECES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED)
        return 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Type_contiguous(PIECE, MPI_BYTE, &piece);
    MPI_Type_contiguous(PIECES, piece, &whole);
    MPI_Type_commit(&piece);
    MPI_Type_commit(&whole);
    if (is_one)
        MPI_Bcast(zeros, 1, whole, 0, MPI_COMM_SELF);
    else
        MPI_Bcast(zeros, PIECES, piece, 0, MPI_COMM_SELF);
    result("large", rank, (double[]){zeros[PIECE], size}, 2);
    MPI_Finalize();
    return 0;
}
