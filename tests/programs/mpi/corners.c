/* Corners of MPI, each with a result: types, requests, packing, collectives in place and at once. */
#include "result.h"

/* One value five times, from a type that does not go on; and a type of nothing. */
static double without_extent(int to, int from, double *grid, double *got)
{
    MPI_Datatype still, empty;
    double sum = 0;
    int count;
    MPI_Status status;
    MPI_Type_create_resized(MPI_DOUBLE, 0, 0, &still);
    MPI_Type_contiguous(0, MPI_DOUBLE, &empty);
    MPI_Type_commit(&still);
    MPI_Type_commit(&empty);
    MPI_Sendrecv(grid + 7, 5, still, to, 30, got, 5, MPI_DOUBLE, from, 30, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(grid, 3, empty, to, 31, got + 5, 3, empty, from, 31, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_DOUBLE, &count);
    for (int i = 0; i < 5; i++)
        sum += got[i] * (i + 1);
    MPI_Type_free(&still);
    MPI_Type_free(&empty);
    return sum + count;
}

static double types(int rank, int size)
{
    double grid[60], got[60], sum = 0;
    MPI_Datatype back, wide, pair, mixed, part, apart;
    const int other = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int i = 0; i < 60; i++) {
        grid[i] = rank * 100 + i;
        got[i] = -1;
    }
    MPI_Type_vector(4, 2, -3, MPI_DOUBLE, &back);
    MPI_Type_create_resized(MPI_DOUBLE, 0, 24, &wide);
    MPI_Type_create_struct(2, (int[]){1, 2}, (MPI_Aint[]){16, 0}, (MPI_Datatype[]){MPI_DOUBLE, MPI_INT}, &mixed);
    MPI_Type_create_subarray(2, (int[]){6, 10}, (int[]){2, 3}, (int[]){1, 4}, MPI_ORDER_C, MPI_DOUBLE, &part);
    MPI_Type_indexed(3, (int[]){2, 0, 3}, (int[]){20, 3, 5}, MPI_DOUBLE, &apart);
    MPI_Type_contiguous(2, MPI_DOUBLE_INT, &pair);
    MPI_Datatype all[] = {back, wide, mixed, part, apart, pair};
    for (int n = 0; n < 6; n++) {
        MPI_Type_commit(&all[n]);
        const int count = all[n] == wide ? 5 : 1, at = all[n] == back ? 20 : 0;
        MPI_Sendrecv(grid + at, count, all[n], other, n, got + at, count, all[n], from, n, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int i = 0; i < 60; i++)
            sum += isfinite(got[i]) ? got[i] * (i + 1) * (n + 1) : 0;
        MPI_Type_free(&all[n]);
    }
    return sum + without_extent(other, from, grid, got);
}

static double requests(int rank, int size)
{
    enum { MOST = 8 };
    MPI_Request r[MOST];
    MPI_Status status[MOST];
    int in[MOST] = {0}, out[MOST], index, done, places[MOST], flag = 0, count = 0;
    double sum = 0;
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int n = 0; n < MOST; n++) {
        out[n] = rank * 10 + n;
        if (n % 3 == 2)
            MPI_Irecv(&in[n], 1, MPI_INT, MPI_PROC_NULL, n, MPI_COMM_WORLD, &r[n]);
        else
            MPI_Irecv(&in[n], 1, MPI_INT, from, n, MPI_COMM_WORLD, &r[n]);
    }
    for (int n = 0; n < MOST; n++)
        if (n % 3 != 2)
            MPI_Send(&out[n], 1, MPI_INT, to, n, MPI_COMM_WORLD);
    MPI_Waitany(MOST, r, &index, &status[0]);
    sum += in[index] * (index + 1);
    MPI_Waitsome(MOST, r, &done, places, status);
    for (int n = 0; n < done; n++)
        sum += in[places[n]] * (places[n] + 1);
    for (int n = 0; n < MOST; n++)
        while (r[n] != MPI_REQUEST_NULL) {
            MPI_Testany(1, &r[n], &index, &flag, &status[0]);
            if (flag && index != MPI_UNDEFINED)
                sum += in[n] * 1000;
        }
    MPI_Testall(MOST, r, &flag, MPI_STATUSES_IGNORE);
    MPI_Waitany(MOST, r, &index, &status[0]);
    sum += flag + (index == MPI_UNDEFINED);
    MPI_Irecv(in, 1, MPI_INT, from, 77, MPI_COMM_WORLD, &r[0]);
    MPI_Cancel(&r[0]);
    MPI_Wait(&r[0], &status[0]);
    MPI_Test_cancelled(&status[0], &flag);
    sum += flag * 7;
    /* Two messages with equal sizes and tags, an empty one, and one shorter than its room. */
    MPI_Irecv(&in[0], 1, MPI_INT, from, 5, MPI_COMM_WORLD, &r[0]);
    MPI_Irecv(&in[1], 1, MPI_INT, from, 5, MPI_COMM_WORLD, &r[1]);
    MPI_Irecv(&in[2], 4, MPI_INT, from, 6, MPI_COMM_WORLD, &r[2]);
    MPI_Isend(&out[0], 1, MPI_INT, to, 5, MPI_COMM_WORLD, &r[3]);
    MPI_Isend(&out[1], 1, MPI_INT, to, 5, MPI_COMM_WORLD, &r[4]);
    MPI_Isend(&out[2], 2, MPI_INT, to, 6, MPI_COMM_WORLD, &r[5]);
    MPI_Wait(&r[1], MPI_STATUS_IGNORE);
    sum += in[1];
    MPI_Waitall(6, r, status);
    MPI_Get_count(&status[2], MPI_INT, &count);
    /* Some of them as they come, then none at all. */
    for (int n = 0; n < 4; n++)
        MPI_Irecv(&in[4 + n], 1, MPI_INT, n == 3 ? MPI_PROC_NULL : from, 20 + n, MPI_COMM_WORLD, &r[n]);
    for (int n = 0; n < 3; n++)
        MPI_Send(&out[n], 1, MPI_INT, to, 20 + n, MPI_COMM_WORLD);
    for (int left = 4; left > 0; left -= done) {
        MPI_Testsome(4, r, &done, places, status);
        for (int n = 0; n < done; n++)
            sum += in[4 + places[n]] * (places[n] + 1) + (places[n] < 3 ? status[n].MPI_TAG : 0);
    }
    MPI_Testsome(4, r, &done, places, MPI_STATUSES_IGNORE);
    sum += done == MPI_UNDEFINED;
    MPI_Sendrecv(NULL, 0, MPI_INT, to, 8, NULL, 0, MPI_INT, from, 8, MPI_COMM_WORLD, &status[0]);
    MPI_Get_count(&status[0], MPI_INT, &index);
    return sum + in[0] * 3 + in[2] + in[3] + in[4] + count + index;
}

static void multiply(void *in, void *inout, int *length, MPI_Datatype *type)
{
    (void)type;
    for (int n = 0; n < *length; n++)
        ((double *)inout)[n] *= 1 + ((double *)in)[n] / 8;
}

static double collectives(int rank, int size)
{
    double v[16], w[16], sum = 0;
    int counts[8], places[8];
    MPI_Request r[3];
    MPI_Op times;
    for (int n = 0; n < 16; n++)
        v[n] = w[n] = rank + n * 0.5;
    for (int n = 0; n < size; n++) {
        counts[n] = n + 1;
        places[n] = n * (n + 1) / 2;
    }
    MPI_Op_create(multiply, 0, &times);
    MPI_Allreduce(MPI_IN_PLACE, v, 16, MPI_DOUBLE, times, MPI_COMM_WORLD);
    MPI_Op_free(&times);
    MPI_Scan(v, w, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        MPI_Gather(MPI_IN_PLACE, 2, MPI_DOUBLE, v, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    else
        MPI_Gather(v, 2, MPI_DOUBLE, NULL, 0, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 1)
        MPI_Scatterv(v, counts, places, MPI_DOUBLE, MPI_IN_PLACE, 0, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    else
        MPI_Scatterv(NULL, NULL, NULL, MPI_DOUBLE, w, counts[rank], MPI_DOUBLE, 1, MPI_COMM_WORLD);
    MPI_Gatherv(w, counts[rank], MPI_DOUBLE, v, counts, places, MPI_DOUBLE, size - 1, MPI_COMM_WORLD);
    MPI_Reduce_scatter_block(v, w, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Iallreduce(v, w + 8, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &r[0]);
    MPI_Ibcast(v + 8, 3, MPI_DOUBLE, 1, MPI_COMM_WORLD, &r[1]);
    MPI_Ibarrier(MPI_COMM_WORLD, &r[2]);
    MPI_Waitall(3, r, MPI_STATUSES_IGNORE);
    MPI_Alltoall(MPI_IN_PLACE, 2, MPI_DOUBLE, w, 2, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int n = 0; n < 16; n++)
        sum += v[n] * (n + 1) + w[n] * (n + 2);
    return sum;
}

static double others(int rank, int size)
{
    char room[256], name[MPI_MAX_PROCESSOR_NAME];
    int at = 0, length, triple[3] = {rank, 2, 3}, found[3], ranks[2] = {size - 1, 0}, in_world[2];
    double sum = 0, value = rank * 0.5;
    MPI_Comm copy, few;
    MPI_Group world, some;
    MPI_Aint here, there;
    MPI_Pack(triple, 3, MPI_INT, room, sizeof room, &at, MPI_COMM_WORLD);
    MPI_Pack(&value, 1, MPI_DOUBLE, room, sizeof room, &at, MPI_COMM_WORLD);
    MPI_Bcast(room, at, MPI_PACKED, 0, MPI_COMM_WORLD);
    at = 0;
    MPI_Unpack(room, sizeof room, &at, found, 3, MPI_INT, MPI_COMM_WORLD);
    MPI_Unpack(room, sizeof room, &at, &value, 1, MPI_DOUBLE, MPI_COMM_WORLD);
    sum += found[0] + found[2] + value;
    MPI_Get_processor_name(name, &length);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_group(copy, &world);
    MPI_Group_incl(world, 2, ranks, &some);
    MPI_Group_translate_ranks(some, 2, (int[]){0, 1}, world, in_world);
    MPI_Comm_create(copy, some, &few);
    if (few != MPI_COMM_NULL) {
        MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, few);
        MPI_Comm_free(&few);
    }
    MPI_Group_free(&some);
    MPI_Group_free(&world);
    MPI_Comm_free(&copy);
    MPI_Get_address(&triple[0], &here);
    MPI_Get_address(&triple[2], &there);
    return sum + in_world[0] + (double)(there - here) + (few == MPI_COMM_NULL) + MPI_Wtick();
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const double found[] = {types(rank, size), requests(rank, size), collectives(rank, size), others(rank, size)};
    result("corners", rank, found, 4);
    MPI_Finalize();
    return 0;
}
