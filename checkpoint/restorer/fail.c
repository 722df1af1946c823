/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a restore that cannot go on. */

#include "restorer.h"

void fail(struct report *report, enum step step, i64 result, u64 address, u64 detail)
{
	if (report) {
		report->step = step;
		report->error = result < 0 ? (i32)-result : 0;
		report->address = address;
		report->detail = detail;
		report->progress = FAILED;
	}
	for (;;)
		CALL1(SYS_exit_group, step);
}
