/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of computing, of reading from the kernel, and of taking and giving back memory: argv[1] turns of each. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18, READS = 6000, MAPPED = 1 << 22, MAPS = 60, PAGE = 4096 };

static char buffer[READ_BYTES];

__attribute__((noinline)) static double computed(int turn)
{
	double x = turn + 0.5;

	for (int i = 0; i < 40000000; i++)
		x = x * 0.999999 + 0.25;
	return x;
}

__attribute__((noinline)) static long read_in(int zero)
{
	long sum = 0;

	for (int i = 0; i < READS; i++)
		sum += read(zero, buffer, sizeof(buffer));
	return sum;
}

__attribute__((noinline)) static long faulted(void)
{
	long sum = 0;

	for (int i = 0; i < MAPS; i++) {
		volatile char *pages = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (pages == MAP_FAILED)
			exit(1);
		madvise((void *)pages, MAPPED, MADV_NOHUGEPAGE);
		for (int at = 0; at < MAPPED; at += PAGE)
			pages[at] = (char)i;
		sum += pages[PAGE];
		munmap((void *)pages, MAPPED);
	}
	return sum;
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : 1;
	int zero = open("/dev/zero", O_RDONLY);
	double x = 0;
	long sum = 0;

	if (zero < 0)
		return 1;
	for (int turn = 0; turn < turns; turn++) {
		x += computed(turn);
		sum += read_in(zero);
		sum += faulted();
	}
	printf("%g %ld\n", x, sum);
	return 0;
}
