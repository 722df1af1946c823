// SPDX-License-Identifier: Apache-2.0
// Exits before any interval is over.
#include <stdio.h>

int main(void)
{
    puts("short");
    return 0;
}
