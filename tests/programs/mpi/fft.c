/* Transposed Fourier transform: Alltoall and Alltoallv of complex numbers, Scatter and Gather around it. */
#include "result.h"
#include <complex.h>

static void transform(double complex *v, int n)
{
    if (n == 1)
        return;
    double complex *half = malloc(n * sizeof *half);
    for (int i = 0; i < n / 2; i++) {
        half[i] = v[2 * i];
        half[i + n / 2] = v[2 * i + 1];
    }
    transform(half, n / 2);
    transform(half + n / 2, n / 2);
    for (int i = 0; i < n / 2; i++) {
        const double complex turned = cexp(-2 * M_PI * I * i / n) * half[i + n / 2];
        v[i] = half[i] + turned;
        v[i + n / 2] = half[i] - turned;
    }
    free(half);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    const int n = argc > 1 ? atoi(argv[1]) : 32, steps = argc > 2 ? atoi(argv[2]) : 3;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int rows = n / size, block = rows * rows;
    double complex *whole = NULL, *own = malloc(sizeof *own * rows * n), *packed = malloc(sizeof *own * rows * n);
    int *counts = malloc(size * sizeof *counts), *places = malloc(size * sizeof *places);
    if (rank == 0) {
        whole = malloc(sizeof *whole * n * n);
        for (int i = 0; i < n * n; i++)
            whole[i] = sin(i) + I * cos(3 * i);
    }
    MPI_Scatter(whole, rows * n, MPI_C_DOUBLE_COMPLEX, own, rows * n, MPI_C_DOUBLE_COMPLEX, 0, MPI_COMM_WORLD);
    for (int step = 0; step < steps; step++) {
        for (int r = 0; r < rows; r++)
            transform(own + r * n, n);
        for (int to = 0; to < size; to++) {
            counts[to] = block;
            places[to] = to * block;
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < rows; c++)
                    packed[to * block + c * rows + r] = own[r * n + to * rows + c];
        }
        if (step % 2)
            MPI_Alltoallv(packed, counts, places, MPI_C_DOUBLE_COMPLEX, own, counts, places, MPI_C_DOUBLE_COMPLEX,
                          MPI_COMM_WORLD);
        else
            MPI_Alltoall(packed, block, MPI_C_DOUBLE_COMPLEX, own, block, MPI_C_DOUBLE_COMPLEX, MPI_COMM_WORLD);
        for (int i = 0; i < rows * n; i++)
            own[i] /= n;
    }
    MPI_Gather(own, rows * n, MPI_C_DOUBLE_COMPLEX, whole, rows * n, MPI_C_DOUBLE_COMPLEX, 0, MPI_COMM_WORLD);
    double sum = 0, first = 0;
    for (int i = 0; i < rows * n; i++)
        sum += cabs(own[i]) * (i % 3);
    for (int i = 0; rank == 0 && i < n * n; i++)
        first += creal(whole[i]) * (i % 11);
    result("fft", rank, (double[]){sum, first}, 2);
    MPI_Finalize();
    return 0;
}
