/* What a rank found, to the bit: the file NAME.RANK. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

static void result(const char *name, int rank, const double *values, int count)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%d", name, rank);
    FILE *out = fopen(path, "w");
    for (int n = 0; n < count; n++)
        fprintf(out, "%a\n", values[n]);
    fclose(out);
}
