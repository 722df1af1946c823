/* Calls of MPI that few programs make, each with a result. */
#include "result.h"

/* Messages taken out of matching, one that nobody sent, and a request looked at before it is waited for. */
static double matched(int rank, int size)
{
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    double data[8], got[8] = {0}, sum = 0;
    MPI_Message message;
    MPI_Request sent[2], request;
    MPI_Status status, other;
    int count, flag = 0;
    for (int n = 0; n < 8; n++)
        data[n] = rank * 8 + n;
    MPI_Isend(data, 3, MPI_DOUBLE, to, 1, MPI_COMM_WORLD, &sent[0]);
    MPI_Isend(data + 3, 5, MPI_DOUBLE, to, 2, MPI_COMM_WORLD, &sent[1]);
    MPI_Mprobe(MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &message, &status);
    MPI_Get_count(&status, MPI_DOUBLE, &count);
    MPI_Mrecv(got, count, MPI_DOUBLE, &message, MPI_STATUS_IGNORE);
    sum += count + got[4] + (message == MPI_MESSAGE_NULL) + status.MPI_SOURCE;
    while (!flag)
        MPI_Improbe(from, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &message, &status);
    MPI_Imrecv(got, 3, MPI_DOUBLE, &message, &request);
    for (flag = 0; !flag;)
        MPI_Request_get_status(request, &flag, &other);
    sum += got[2] + other.MPI_TAG + (request != MPI_REQUEST_NULL);
    MPI_Wait(&request, &other);
    MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE);
    sum += other.MPI_TAG + flag;
    MPI_Mprobe(MPI_PROC_NULL, 0, MPI_COMM_WORLD, &message, &status);
    sum += message == MPI_MESSAGE_NO_PROC;
    MPI_Mrecv(NULL, 0, MPI_INT, &message, &status);
    MPI_Waitall(2, sent, MPI_STATUSES_IGNORE);
    return sum + (status.MPI_SOURCE == MPI_PROC_NULL);
}

/* Another type and amount for each rank; collectives of several amounts, at once. */
static double each(int rank, int size)
{
    double v[64], w[64] = {0}, sum = 0;
    int out[4], at[4], in[4], into[4];
    MPI_Datatype types[4], pair;
    MPI_Request r[7];
    MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
    MPI_Type_commit(&pair);
    for (int n = 0; n < 64; n++)
        v[n] = rank + n * 0.25;
    for (int n = 0; n < size; n++) {
        types[n] = (rank + n) % 2 ? pair : MPI_DOUBLE;
        out[n] = in[n] = 1 + (rank + n) % 2;
        at[n] = into[n] = n * 8 * (int)sizeof(double);
    }
    MPI_Alltoallw(v, out, at, types, w, in, into, types, MPI_COMM_WORLD);
    for (int n = 0; n < 64; n++)
        sum += w[n] * (n + 1);
    MPI_Ialltoallw(v, out, at, types, w, in, into, types, MPI_COMM_WORLD, &r[0]);
    int some[4], place[4], all = 0;
    for (int n = 0; n < size; n++) {
        some[n] = n + 1;
        place[n] = all;
        all += n + 1;
    }
    double g[10] = {0}, s[10] = {0}, a[10] = {0}, b[4] = {0}, c[4] = {0}, d[4] = {0};
    MPI_Igatherv(v, rank + 1, MPI_DOUBLE, g, some, place, MPI_DOUBLE, 1, MPI_COMM_WORLD, &r[1]);
    MPI_Iscatterv(v, some, place, MPI_DOUBLE, s, rank + 1, MPI_DOUBLE, 0, MPI_COMM_WORLD, &r[2]);
    MPI_Iallgatherv(v + 1, rank + 1, MPI_DOUBLE, a, some, place, MPI_DOUBLE, MPI_COMM_WORLD, &r[3]);
    MPI_Iscan(v, b, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &r[4]);
    MPI_Ireduce_scatter(v, c, some, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &r[5]);
    MPI_Iexscan(v, d, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &r[6]);
    MPI_Waitall(7, r, MPI_STATUSES_IGNORE);
    for (int n = 0; n < 10; n++)
        sum += (rank == 1 ? g[n] : 0) * (n + 2) + s[n] * (n + 3) + a[n] * (n + 5);
    for (int n = 0; n < 4; n++)
        sum += b[n] + c[n] * (n + 7) + (rank > 0 ? d[n] : 0);
    MPI_Type_free(&pair);
    return sum;
}

static void handle(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    (void)code;
}

/* What sends nothing, or only what was buffered. */
static double local(int rank, int size)
{
    double v[4] = {1, 2, 3, rank}, w[4] = {5, 6, 7, 8}, sum = 0, *room;
    char text[MPI_MAX_OBJECT_NAME], value[64], key[MPI_MAX_INFO_KEY];
    int length, flag, count, integers, addresses, types, how, triple[1][3] = {{0, size - 1, size - 1}};
    char *buffer = malloc(4096 + MPI_BSEND_OVERHEAD), *back;
    MPI_Info info, copy;
    MPI_Group all, ends, middle;
    MPI_Datatype matching;
    MPI_Errhandler before, own;
    MPI_Count wide, lower;
    MPI_Reduce_local(v, w, 4, MPI_DOUBLE, MPI_SUM);
    sum += w[0] + w[3];
    MPI_Comm_set_name(MPI_COMM_WORLD, "everybody");
    MPI_Comm_get_name(MPI_COMM_WORLD, text, &length);
    sum += length + text[2];
    MPI_Info_create(&info);
    MPI_Info_set(info, "first", "one");
    MPI_Info_set(info, "second", "two");
    MPI_Info_dup(info, &copy);
    MPI_Info_delete(copy, "first");
    MPI_Info_get_nkeys(copy, &count);
    MPI_Info_get_nthkey(copy, 0, key);
    MPI_Info_get(copy, "first", 60, value, &flag);
    sum += count + key[1] + flag;
    MPI_Info_get(copy, "second", 60, value, &flag);
    MPI_Info_get_valuelen(copy, "second", &length, &count);
    sum += flag * value[1] + length + count;
    MPI_Info_free(&info);
    MPI_Info_free(&copy);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_range_incl(all, 1, triple, &ends);
    MPI_Group_range_excl(all, 1, triple, &middle);
    MPI_Group_size(ends, &count);
    MPI_Group_size(middle, &length);
    sum += count * 10 + length;
    MPI_Group_free(&ends);
    MPI_Group_free(&all);
    MPI_Type_match_size(MPI_TYPECLASS_REAL, 8, &matching);
    MPI_Type_get_envelope(MPI_DOUBLE, &integers, &addresses, &types, &how);
    MPI_Type_get_extent_x(MPI_DOUBLE_INT, &lower, &wide);
    MPI_Op_commutative(MPI_SUM, &flag);
    sum += integers + types + (how == MPI_COMBINER_NAMED) + (double)wide + (matching != MPI_DATATYPE_NULL) +
           flag;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    MPI_Comm_create_errhandler(handle, &own);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
    MPI_Errhandler_free(&own);
    MPI_Errhandler_free(&before);
    MPI_Alloc_mem(64 * sizeof(double), MPI_INFO_NULL, &room);
    room[63] = rank;
    sum += room[63];
    MPI_Free_mem(room);
    MPI_Buffer_attach(buffer, 4096 + MPI_BSEND_OVERHEAD);
    MPI_Bsend(v, 4, MPI_DOUBLE, (rank + 1) % size, 9, MPI_COMM_WORLD);
    MPI_Recv(w, 4, MPI_DOUBLE, (rank + size - 1) % size, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Buffer_detach(&back, &length);
    sum += (back == buffer) + length + w[3];
    free(buffer);
    return sum + (MPI_Comm_f2c(MPI_Comm_c2f(MPI_COMM_WORLD)) == MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, size, provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const double found[] = {matched(rank, size), each(rank, size), local(rank, size)};
    result("seldom", rank, found, 3);
    MPI_Finalize();
    return 0;
}
