// SPDX-License-Identifier: Apache-2.0
//
// Calls that read the clock.

double MPI_Wtime(void)
{
	if (!enter(SITE))
		return PMPI_Wtime();
	const double now = PMPI_Wtime();
	put_double(now);
	leave(F_Wtime);
	return now;
}

double MPI_Wtick(void)
{
	if (!enter(SITE))
		return PMPI_Wtick();
	const double tick = PMPI_Wtick();
	put_double(tick);
	leave(F_Wtick);
	return tick;
}
