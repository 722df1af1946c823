/* Does nothing; or, without the recorder, sends a recording that is wrong as the first argument says. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS, INBOX, RANK, NO_FILE };

static MPI_Comm quiet;

static void send_as(uint32_t kind, uint32_t part, uint64_t bytes, const char *data, int sent)
{
    struct {
        uint32_t kind, part;
        uint64_t bytes;
    } header = {kind, part, bytes};
    MPI_Send(&header, sizeof header, MPI_BYTE, 0, 0, quiet);
    if (data != NULL)
        MPI_Send(data, sent, MPI_BYTE, 0, 0, quiet);
}

/* A file of this folder, once more. */
static void send_file(uint32_t kind, const char *path, int shorter)
{
    static char data[1 << 20];
    FILE *file = fopen(path, "rb");
    const int bytes = (int)fread(data, 1, sizeof data, file) - shorter;
    fclose(file);
    send_as(kind, 0, bytes, data, bytes);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    const char data[48] = "", more[56] = "";
    int rank, size, own = 0, *seeing;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(how, "honest") == 0) {
        MPI_Finalize();
        return 0;
    }
    MPI_Comm_idup(MPI_COMM_WORLD, &quiet, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    seeing = malloc(size * sizeof *seeing);
    MPI_Allgather(&own, 1, MPI_INT, seeing, 1, MPI_INT, quiet);
    MPI_Barrier(quiet);
    MPI_Recv(NULL, 0, MPI_BYTE, 0, 0, quiet, MPI_STATUS_IGNORE);
    if (strcmp(how, "long") == 0)
        send_as(RANK, 0, (uint64_t)1 << 40, NULL, 0);
    send_file(RANK, "rank.1", 0);
    if (strcmp(how, "kind") == 0)
        send_as(7, 0, 8, "forged!", 8);
    if (strcmp(how, "part") == 0)
        send_as(CALLS, 1, 8, "forged!", 8);
    if (strcmp(how, "twice") == 0)
        send_file(RANK, "rank.1", 0);
    if (strcmp(how, "huge") == 0)
        send_as(INBOX, 0, (uint64_t)1 << 40, NULL, 0);
    if (strcmp(how, "tiny") == 0)
        send_as(INBOX, 0, 8, "forged!", 8);
    if (strcmp(how, "empty") == 0)
        send_as(INBOX, 0, 48, data, sizeof data);
    for (uint32_t part = 0; part <= 65536 && strcmp(how, "many") == 0; part++)
        send_as(INBOX, part, sizeof data + 8, more, sizeof more);
    if (strcmp(how, "piece") == 0)
        send_as(CALLS, 0, 500, "forged!", 8);
    if (strcmp(how, "nothing") != 0) {
        send_file(CALLS, strcmp(how, "foreign") == 0 ? "calls.0.000" : "calls.1.000", strcmp(how, "cut") ? 0 : 8);
        send_file(INBOX, "inbox.1.000", 0);
    }
    send_as(NO_FILE, 0, 0, NULL, 0);
    MPI_Barrier(quiet);
    MPI_Comm_free(&quiet);
    MPI_Finalize();
    return 0;
}
