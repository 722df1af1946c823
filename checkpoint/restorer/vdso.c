/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the node's own vDSO, for the program's to ask: what reads the clock without a system call does so again.
 * Where there is none, or it cannot be moved, the program's makes system calls.
 */

#include "restorer.h"

#define TEXT_BYTES 8192
#define MREMAP_MAYMOVE 1
#define MREMAP_FIXED 2
#define PT_DYNAMIC 2
#define DT_STRTAB 5
#define DT_SYMTAB 6
#define FUNCTION "__vdso_clock_gettime"

/* Offsets and sizes of 64-bit ELF. */
#define HEADERS_AT 32
#define HEADER_COUNT_AT 56
#define HEADER_BYTES 56
#define DYNAMIC_BYTES 16

struct symbol {
	u32 name;
	u8 info, other;
	unsigned short section;
	u64 value, size;
};

struct line {
	u64 start, end;
	const u8 *name; /* behind the bracket; 0: not one of the kernel's, or a path */
};

static u64 hexadecimal(const u8 **text)
{
	u64 value = 0;

	for (;; ++*text) {
		u8 digit = **text;

		if (digit >= '0' && digit <= '9')
			value = value << 4 | (u64)(digit - '0');
		else if (digit >= 'a' && digit <= 'f')
			value = value << 4 | (u64)(digit - 'a' + 10);
		else
			return value;
	}
}

/* Whether `text` begins like that. */
static int begins(const u8 *text, const char *with)
{
	while (*with && *text == (u8)*with)
		text++, with++;
	return !*with;
}

/* "7fff0000-7fff2000 r-xp 00000000 00:00 0   [vdso]"; moves behind it. */
static struct line read_line(const u8 **text)
{
	struct line l = {hexadecimal(text), 0, 0};
	int path = 0;

	*text += **text == '-';
	l.end = hexadecimal(text);
	for (; **text && **text != '\n'; ++*text) {
		path |= **text == '/';
		if (**text == '[' && !l.name && !path)
			l.name = *text + 1;
	}
	*text += **text == '\n';
	return l;
}

/* Our mappings as text that ends with a zero; empty where they cannot be known. */
static void read_mappings(u8 text[TEXT_BYTES])
{
	i64 file = CALL4(SYS_openat, -100, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0), got = 1;
	u64 filled = 0;

	while (file >= 0 && got > 0 && filled < TEXT_BYTES - 1) {
		got = CALL3(SYS_read, file, text + filled, TEXT_BYTES - 1 - filled);
		if (got == -EINTR)
			got = 1;
		else if (got > 0)
			filled += (u64)got;
	}
	if (file >= 0)
		CALL1(SYS_close, file);
	text[got ? 0 : filled] = 0;
}

static u64 word(u64 address)
{
	return *(const u64 *)address;
}

/* Where the vDSO's clock_gettime is; 0 where it exports none. As in every vDSO so far the names follow the symbols. */
static u64 find_function(u64 start, u64 bytes)
{
	u64 headers = word(start + HEADERS_AT), count = word(start + HEADER_COUNT_AT) & 0xffff, names = 0, symbols = 0;

	if (!begins((const u8 *)start, "\177ELF\2") || headers > bytes || count * HEADER_BYTES > bytes - headers)
		return 0;
	for (u64 i = 0; i < count; i++) {
		u64 header = start + headers + i * HEADER_BYTES, at = word(header + 8), size = word(header + 32);

		if ((u32)word(header) != PT_DYNAMIC || at > bytes || size > bytes - at)
			continue;
		for (u64 entry = start + at; entry + DYNAMIC_BYTES <= start + at + size; entry += DYNAMIC_BYTES) {
			names = word(entry) == DT_STRTAB ? word(entry + 8) : names;
			symbols = word(entry) == DT_SYMTAB ? word(entry + 8) : symbols;
		}
	}
	/* Old kernels' is linked elsewhere than at 0: it is left alone. */
	if (!symbols || symbols >= names || names >= bytes - sizeof(FUNCTION))
		return 0;
	for (; symbols + sizeof(struct symbol) <= names; symbols += sizeof(struct symbol)) {
		const struct symbol *s = (const struct symbol *)(start + symbols);

		const u8 *name = (const u8 *)start + names + s->name;

		if (s->section && s->name < bytes - names - sizeof(FUNCTION) && s->value < bytes &&
		    begins(name, FUNCTION) && !name[sizeof(FUNCTION) - 1])
			return start + s->value;
	}
	return 0;
}

/* All its mappings, the data before the code, keep their distances: by these the code finds its data. */
void keep_vdso(struct context *c)
{
	u64 room = c->park + c->image->park_size - VDSO_ROOM, first = 0, last = 0, function = 0;
	struct clock now;
	u8 text[TEXT_BYTES];
	const u8 *at = text;

	c->node_clock = 0;
	if (!asks_node(c->image) || (c->options & ASK_KERNEL))
		return;
	read_mappings(text);
	while (*at) {
		struct line l = read_line(&at);
		u64 bytes = l.end - l.start;
		int code = l.name && begins(l.name, "vdso]");

		if (!code && !(l.name && begins(l.name, "vvar")))
			continue;
		/* Data of another name, or none: nobody knows what the code would read. */
		if (last ? l.start != last : code)
			return;
		first = first ? first : l.start;
		last = l.end;
		if (last - first > VDSO_ROOM || CALL5(SYS_mremap, l.start, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
						      room + (l.start - first)) < 0)
			return;
		if (code)
			function = find_function(room + (l.start - first), bytes);
	}
	c->node_clock = function;
	/* Its pages are there before the phase asks for them. */
	if (function)
		((i64 (*)(u64, struct clock *))function)(CLOCK_MONOTONIC, &now);
}
