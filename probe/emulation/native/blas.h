/* SPDX-License-Identifier: Apache-2.0
 * A product of matrices of 128 x 128 numbers by OpenBLAS. */
#ifndef PROBE_BLAS_H
#define PROBE_BLAS_H

#include <stdint.h>

/* Returns ELIBACC where there is no OpenBLAS, or where this program was built to need no library. */
int blas_prepare(const char *folder);
void blas_run(uint64_t iterations);

#endif
