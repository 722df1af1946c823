/* Halo exchange: Cartesian grid, columns as a vector type, requests, rows of the grid as communicators. */
#include "result.h"

int main(int argc, char **argv)
{
    int rank, size, dims[2] = {0, 0}, periods[2] = {0, 1}, at[2], up, down, left, right;
    MPI_Init(&argc, &argv);
    const int n = argc > 1 ? atoi(argv[1]) : 64, steps = argc > 2 ? atoi(argv[2]) : 20;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Dims_create(size, 2, dims);
    MPI_Comm grid, row;
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Cart_coords(grid, rank, 2, at);
    MPI_Comm_split(MPI_COMM_WORLD, at[0], at[1], &row);
    MPI_Cart_shift(grid, 0, 1, &up, &down);
    MPI_Cart_shift(grid, 1, 1, &left, &right);
    const int h = n / dims[0], w = n / dims[1], line = w + 2;
    double *a = calloc((size_t)(h + 2) * line, 8), *b = calloc((size_t)(h + 2) * line, 8), sum = 0, in_row = 0;
    for (int i = 0; i < (h + 2) * line; i++)
        a[i] = sin(0.001 * i + rank);
    MPI_Datatype column;
    MPI_Type_vector(h, 1, line, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    for (int step = 0; step < steps; step++) {
        MPI_Request r[8];
        double own = 0;
        MPI_Irecv(a + 1, w, MPI_DOUBLE, up, 1, grid, &r[0]);
        MPI_Irecv(a + (h + 1) * line + 1, w, MPI_DOUBLE, down, 2, grid, &r[1]);
        MPI_Irecv(a + line, 1, column, left, 3, grid, &r[2]);
        MPI_Irecv(a + line + w + 1, 1, column, right, 4, grid, &r[3]);
        MPI_Isend(a + line + 1, w, MPI_DOUBLE, up, 2, grid, &r[4]);
        MPI_Isend(a + h * line + 1, w, MPI_DOUBLE, down, 1, grid, &r[5]);
        MPI_Isend(a + line + 1, 1, column, left, 4, grid, &r[6]);
        MPI_Isend(a + line + w, 1, column, right, 3, grid, &r[7]);
        MPI_Waitall(8, r, MPI_STATUSES_IGNORE);
        for (int i = 1; i <= h; i++)
            for (int j = 1; j <= w; j++) {
                const int p = i * line + j;
                b[p] = 0.25 * (a[p - 1] + a[p + 1] + a[p - line] + a[p + line]);
                own += fabs(b[p] - a[p]);
            }
        double *other = a;
        a = b;
        b = other;
        MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (step % 5 == 0)
            MPI_Reduce(&own, &in_row, 1, MPI_DOUBLE, MPI_MAX, 0, row);
    }
    result("halo", rank, (double[]){sum, in_row, a[line + 1], a[h * line + w]}, 4);
    MPI_Type_free(&column);
    MPI_Comm_free(&row);
    MPI_Comm_free(&grid);
    MPI_Finalize();
    return 0;
}
