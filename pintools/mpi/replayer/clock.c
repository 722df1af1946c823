// SPDX-License-Identifier: Apache-2.0
//
// Calls that read the clock.

static double taken_double(unsigned function)
{
	// A double answers where others have a result.
	const int64_t bits = (take(function), at -= WORD, get_int());
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

double MPI_Wtime(void)
{
	return taken_double(F_Wtime);
}

double MPI_Wtick(void)
{
	return taken_double(F_Wtick);
}
