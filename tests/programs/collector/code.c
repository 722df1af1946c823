/* SPDX-License-Identifier: Apache-2.0 */
/* What the collector can tell from an instruction's bytes. Prints the first thing that is wrong, and fails. */
#include <stdio.h>
#include <stdlib.h>

#include "collector.h"

struct sample {
	const char *text;
	int repeated;
	u32 size;
	u8 code[8];
};

static const struct sample samples[] = {
	{"rep movsb", 1, 2, {0xf3, 0xa4}},
	{"rep movsq", 1, 3, {0xf3, 0x48, 0xa5}},
	{"rep stosb", 1, 2, {0xf3, 0xaa}},
	{"rep stosw", 1, 3, {0x66, 0xf3, 0xab}},
	{"rep stosw, prefixes turned", 1, 3, {0xf3, 0x66, 0xab}},
	{"repz cmpsb", 1, 2, {0xf3, 0xa6}},
	{"repnz scasb", 1, 2, {0xf2, 0xae}},
	{"rep lodsb", 1, 2, {0xf3, 0xac}},
	{"rep outsb", 1, 2, {0xf3, 0x6e}},
	{"rep movsb %fs:", 1, 3, {0x64, 0xf3, 0xa4}},
	{"rep movsb (%esi)", 1, 3, {0xf3, 0x67, 0xa4}},
	{"movsb", 0, 1, {0xa4}},
	{"movsq", 0, 2, {0x48, 0xa5}},
	{"rep ret", 0, 2, {0xf3, 0xc3}},
	{"pause", 0, 2, {0xf3, 0x90}},
	{"test $1, %al", 0, 2, {0xa8, 0x01}},
	{"rep test", 0, 3, {0xf3, 0xa8, 0x01}},
	{"movss %xmm0, %xmm1", 0, 4, {0xf3, 0x0f, 0x10, 0xc8}},
	{"popcnt %eax, %eax", 0, 4, {0xf3, 0x0f, 0xb8, 0xc0}},
	{"endbr64", 0, 4, {0xf3, 0x0f, 0x1e, 0xfa}},
	{"loop to itself", 0, 2, {0xe2, 0xfe}},
	{"bnd jmp", 0, 3, {0xf2, 0xeb, 0xfd}},
	{"prefixes alone", 0, 2, {0xf3, 0x48}},
};

static void expect(int right, const char *what)
{
	if (!right) {
		printf("%s\n", what);
		exit(1);
	}
}

int main(void)
{
	static const u8 short_block[] = {4, 4, 2}, long_jump[] = {4, 6}, near_jump[] = {1, 5}, middle[] = {1, 7, 2};
	static const u8 jne[] = {0x0f, 0x85, 0, 0, 0, 0}, call[] = {0xe8, 0, 0, 0, 0}, ret[] = {0xc3, 0}, mov[] = {0xb8, 0};

	for (u32 i = 0; i < sizeof samples / sizeof *samples; i++)
		expect(is_repeated_string(samples[i].code, samples[i].size) == samples[i].repeated, samples[i].text);
	expect(!block_offers_marker(short_block, 3, ret, 1), "no instruction of five bytes");
	expect(!block_offers_marker(long_jump, 2, jne, 1), "a conditional jump cannot be displaced");
	expect(block_offers_marker(near_jump, 2, call, 1), "a call can be redirected");
	expect(!block_offers_marker(near_jump, 2, mov, 1), "a transfer of another kind cannot");
	expect(block_offers_marker(near_jump, 2, mov, 0), "no transfer at all: displaced");
	expect(block_offers_marker(middle, 3, ret, 1), "one in the middle");
	return 0;
}
