// SPDX-License-Identifier: Apache-2.0
//
// End of a rank that left its recording.

static const char *name_of(unsigned function)
{
	return function < F_COUNT ? function_names[function] : function == END ? "the end" : "something else";
}

__attribute__((noreturn)) static void stop(const char *reason)
{
	fprintf(stderr, "probe: call %lu: %s\n", calls_made, reason);
	_exit(LEFT_STATUS);
}

__attribute__((noreturn)) static void left(unsigned recorded, const char *made)
{
	char reason[200];
	snprintf(reason, sizeof reason, "this rank left its recording (recorded %s, made %s)", name_of(recorded), made);
	stop(reason);
}

__attribute__((noreturn, used)) void probe_mpi_unknown(const char *name)
{
	char reason[200];
	snprintf(reason, sizeof reason, "this program calls %s, which is not recorded", name);
	stop(reason);
}
