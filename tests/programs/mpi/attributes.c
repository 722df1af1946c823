/* Attributes of communicators: the library's own, and the program's, whose functions call MPI themselves. */
#include "result.h"
#include <time.h>

/* Of MPI 1. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static double seen;

/* A tenth of a second of computing. */
static void compute(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    const double end = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + 0.1;
    while ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec < end)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
}

/* Called while the communicator is copied: all ranks add something up. */
static int copy(MPI_Comm comm, int key, void *given, void *value, void *made, int *flag)
{
    int sum, rank, one = (int)*(double *)value;
    (void)key;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    *(double **)made = malloc(sizeof(double));
    MPI_Comm_rank(comm, &rank);
    **(double **)made = sum + *(double *)given;
    *flag = 1;
    return MPI_SUCCESS;
}

/* Another call, and a copy of the communicator within its copying; libraries have orders of their own. */
static int copy_again(MPI_Comm comm, int key, void *given, void *value, void *made, int *flag)
{
    MPI_Comm inner;
    (void)key;
    (void)given;
    MPI_Comm_dup(MPI_COMM_SELF, &inner);
    MPI_Comm_free(&inner);
    MPI_Barrier(comm);
    *(void **)made = value;
    *flag = 1;
    return MPI_SUCCESS;
}

static int delete(MPI_Comm comm, int key, void *value, void *given)
{
    int most, rank;
    (void)key;
    MPI_Comm_rank(comm, &rank);
    MPI_Allreduce(&rank, &most, 1, MPI_INT, MPI_MAX, comm);
    seen = seen * 3 + *(double *)value + *(double *)given + most;
    if (given != value)
        free(value);
    return MPI_SUCCESS;
}

/* Of MPI_COMM_SELF: what MPI_Finalize calls, the last one first. */
static int last(MPI_Comm comm, int key, void *value, void *given)
{
    int rank, done, size;
    (void)key;
    (void)given;
    MPI_Finalized(&done);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(comm, &size);
    seen = seen * 5 + *(int *)value + size + done;
    result("attributes", rank, &seen, 1);
    return MPI_SUCCESS;
}

static double library(void)
{
    int *value, flag, *again;
    double sum = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &flag);
    sum += flag ? *value : -1;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_WTIME_IS_GLOBAL, &again, &flag);
    sum += flag && value != again ? *again + 2 : -2;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &again, &flag);
    return sum + (value == again);
}

int main(int argc, char **argv)
{
    static int first = 7, second = 9;
    int rank, flag, counted, copied, own, other, older, another;
    double *value, given = 0.5, other_given = 0.75, *there = malloc(sizeof *there);
    MPI_Comm made, third;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    seen = library();
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &counted, NULL);
    MPI_Comm_create_keyval(copy, delete, &copied, &given);
    MPI_Comm_create_keyval(copy_again, delete, &another, &other_given);
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, last, &own, NULL);
    MPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, &other, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, other, &second);
    MPI_Comm_get_attr(MPI_COMM_WORLD, counted, &value, &flag);
    seen += flag;
    *there = rank + 1;
    MPI_Comm_set_attr(MPI_COMM_WORLD, another, &other_given);
    MPI_Comm_set_attr(MPI_COMM_WORLD, counted, &first);
    MPI_Comm_set_attr(MPI_COMM_WORLD, copied, there);
    MPI_Comm_set_attr(MPI_COMM_WORLD, other, &second);
    compute();
    MPI_Comm_dup(MPI_COMM_WORLD, &made);
    MPI_Comm_get_attr(made, counted, &value, &flag);
    seen += 10 * flag;
    MPI_Comm_get_attr(made, other, &value, &flag);
    seen += flag ? *(int *)(void *)value : 100;
    MPI_Comm_get_attr(made, copied, &value, &flag);
    seen += flag ? *value : -100;
    seen += made == MPI_COMM_NULL;
    MPI_Comm_dup_with_info(made, MPI_INFO_NULL, &third);
    MPI_Comm_free(&made);
    MPI_Comm_get_attr(third, copied, &value, &flag);
    seen += flag ? *value : -1000;
    MPI_Comm_delete_attr(third, copied);
    MPI_Comm_get_attr(third, copied, &value, &flag);
    seen += flag;
    MPI_Comm_free(&third);
    MPI_Comm_delete_attr(MPI_COMM_WORLD, copied);
    MPI_Comm_free_keyval(&copied);
    seen += copied == MPI_KEYVAL_INVALID;
    MPI_Keyval_create(MPI_DUP_FN, MPI_NULL_DELETE_FN, &older, NULL);
    MPI_Attr_put(MPI_COMM_WORLD, older, &first);
    MPI_Attr_get(MPI_COMM_WORLD, older, &value, &flag);
    seen += flag ? *(int *)(void *)value : -5;
    MPI_Attr_delete(MPI_COMM_WORLD, older);
    MPI_Attr_get(MPI_COMM_WORLD, older, &value, &flag);
    MPI_Keyval_free(&older);
    seen += flag;
    MPI_Comm_set_attr(MPI_COMM_SELF, own, &second);
    MPI_Comm_set_attr(MPI_COMM_SELF, own, &first);
    MPI_Comm_set_attr(MPI_COMM_SELF, counted, &first);
    MPI_Finalize();
    return 0;
}
