/* SPDX-License-Identifier: Apache-2.0
 * End with a reason. */
#include "fail.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void emulator_fail(const char *what, int number)
{
    fprintf(stderr, "error %d %s\n", number, what);
    exit(3);
}
