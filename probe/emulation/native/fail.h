/* SPDX-License-Identifier: Apache-2.0
 * End with a reason that the program which started this one can read: `error ERRNO WHAT`. */
#ifndef PROBE_FAIL_H
#define PROBE_FAIL_H

_Noreturn void emulator_fail(const char *what, int number);

#endif
