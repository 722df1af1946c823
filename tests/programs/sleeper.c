/* SPDX-License-Identifier: Apache-2.0 */
/* Computes and sleeps by turns: argv[1] turns, argv[2] milliseconds of sleep in each. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

__attribute__((noinline)) static double computed(double x)
{
	for (int i = 0; i < 2000000; i++)
		x = x * 0.999999 + 0.25;
	return x;
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : 1;
	long pause = argc > 2 ? atol(argv[2]) : 1;
	struct timespec time = {pause / 1000, pause % 1000 * 1000000};
	double x = 0;

	for (int turn = 0; turn < turns; turn++) {
		x = computed(x);
		nanosleep(&time, NULL);
	}
	printf("%g\n", x);
	return 0;
}
