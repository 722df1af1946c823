/* SPDX-License-Identifier: Apache-2.0 */
/* 64 functions one after the other, none of them twice: argv[1] thousand turns of each. */
#include <stdio.h>
#include <stdlib.h>

static volatile double seen[8];

#define ONE(n) \
	__attribute__((noinline)) static double f##n(double x, long turns) \
	{ \
		for (long i = 0; i < turns; i++) { \
			for (int k = 0; k < 1000; k++) \
				x = x * (1.0 - 1e-9 * 0x##n) + 0.25; \
			seen[i & 7] += x / (1.0 + 1e-9 * 0x##n); \
		} \
		return x; \
	}
#define CALL(n) x = f##n(x, turns);
#define SIXTEEN(DO, n) \
	DO(n##0) DO(n##1) DO(n##2) DO(n##3) DO(n##4) DO(n##5) DO(n##6) DO(n##7) \
	DO(n##8) DO(n##9) DO(n##a) DO(n##b) DO(n##c) DO(n##d) DO(n##e) DO(n##f)
#define ALL(DO) SIXTEEN(DO, 1) SIXTEEN(DO, 2) SIXTEEN(DO, 3) SIXTEEN(DO, 4)

ALL(ONE)

int main(int argc, char **argv)
{
	long turns = (argc > 1 ? atol(argv[1]) : 1) * 1000;
	double x = 0.5;

	ALL(CALL)
	printf("%g\n", x);
	return 0;
}
