// SPDX-License-Identifier: Apache-2.0
//
// What the recorder writes and the replayer reads of one rank: the bytes of docs/mpi.md. All little-endian.

#include <stdint.h>
#include <string.h>

enum { FORMAT_VERSION = 2, PART_BYTES = 1 << 20, WORD = 8 };

// Records that no call of MPI makes.
enum { LAYOUT = 0xfff0, BEGIN = 0xfff1, END = 0xfff2, COPY = 0xfff3, DELETE = 0xfff4 };

#define PART_MAGIC "PRBINBOX"
#define CALLS_MAGIC "PRBCALLS"

// Before each part of the inbox, and before the calls (part 0). `plain` and `weighted`: sums over its 64-bit words.
typedef struct {
	char magic[8];
	uint32_t version, rank, ranks, part;
	uint64_t bytes, plain, weighted;
} PartHeader;

// All that a call returned follows. `repeats`: how often the next calls were the same, with the same answer.
typedef struct {
	uint16_t function, reserved;
	uint32_t bytes;
	uint64_t repeats;
} RecordHeader;

// One call, for the simulation. `computing` and `inside`: nanoseconds before the call, and in it.
typedef struct {
	uint16_t function, reserved;
	uint32_t extras;
	int32_t peer, tag, comm, other;
	uint64_t count;
	uint32_t element, request;
	uint64_t computing, inside, site;
} CallRecord;

// A stretch of memory that a type covers, from the address that a call names.
typedef struct {
	int64_t at;
	uint64_t bytes;
} Run;

static inline uint64_t padded(uint64_t bytes)
{
	return (bytes + WORD - 1) / WORD * WORD;
}

// A hash of data sent: enough to see that a rank alone computed the same to the bit.
static inline uint64_t mixed(uint64_t hash, const char *data, uint64_t bytes)
{
	uint64_t word = 0;
	while (bytes >= WORD) {
		memcpy(&word, data, WORD);
		hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 29;
		data += WORD;
		bytes -= WORD;
	}
	word = bytes;
	if (bytes > 0)
		memcpy((char *)&word + 1, data, bytes < 7 ? bytes : 7);
	return (hash ^ word) * 0x9e3779b97f4a7c15u;
}
