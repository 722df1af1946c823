/* SPDX-License-Identifier: Apache-2.0
 * Measure one kernel, or do nothing but execute it. */
#ifndef PROBE_CALIBRATION_H
#define PROBE_CALIBRATION_H

/* Prints rounds: `round ITERATIONS CPU_SECONDS`, each of some milliseconds; then how many of them had denormals. */
void emulator_calibrate(const char *name, const char *folder);

/* Says `ready` when all is prepared, waits for a line, and then executes the kernel for so many CPU seconds. */
void emulator_repeat(const char *name, const char *folder, const char *seconds);

#endif
