// SPDX-License-Identifier: Apache-2.0
// Fast Fourier transforms, there and back, of a long signal of complex numbers.
// Usage: fourier [TRANSFORMS]
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BITS = 18, N = 1 << BITS };

static double complex signal_[N], root[N / 2];

static double complex times(double complex a, double complex b)
{
    return CMPLX(creal(a) * creal(b) - cimag(a) * cimag(b), creal(a) * cimag(b) + cimag(a) * creal(b));
}

static void reorder(void)
{
    for (unsigned i = 0, j = 0; i < N; i++) {
        if (i < j) {
            double complex swap = signal_[i];
            signal_[i] = signal_[j];
            signal_[j] = swap;
        }
        unsigned bit = N >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j |= bit;
    }
}

static void butterflies(int back)
{
    for (int half = 1; half < N; half *= 2)
        for (int start = 0; start < N; start += 2 * half)
            for (int k = 0; k < half; k++) {
                double complex w = root[k * (N / 2 / half)];
                double complex odd = times(back ? conj(w) : w, signal_[start + k + half]);
                signal_[start + k + half] = signal_[start + k] - odd;
                signal_[start + k] += odd;
            }
}

int main(int argc, char **argv)
{
    long transforms = argc > 1 ? atol(argv[1]) : 300;
    if (transforms < 1) {
        fprintf(stderr, "usage: %s [TRANSFORMS]\n", argv[0]);
        return 2;
    }
    for (int k = 0; k < N / 2; k++)
        root[k] = cexp(-2.0 * M_PI * I * k / N);
    for (int i = 0; i < N; i++)
        signal_[i] = CMPLX(sin(0.01 * i), cos(0.02 * i));
    for (long turn = 0; turn < transforms; turn++) {
        reorder();
        butterflies((int)(turn % 2));
        if (turn % 2)
            for (int i = 0; i < N; i++)
                signal_[i] /= N;
    }
    double sum = 0.0;
    for (int i = 0; i < N; i++)
        sum += creal(signal_[i]) * creal(signal_[i]) + cimag(signal_[i]) * cimag(signal_[i]);
    printf("fourier %ld %.9e\n", transforms, sum);
    return 0;
}
