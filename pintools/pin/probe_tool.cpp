// SPDX-License-Identifier: Apache-2.0
//
// The Pin tool: gives every basic block that Pin translates to the collector, and counts it in place.
//
//	pin -t probe_tool.so -stream FILE [-interval N] [-slack N] [-most_intervals N] [-foreign PREFIX,...] -- PROGRAM
//
// A block is Pin's BBL: one entry, one exit. Counting is two analysis calls that Pin inlines, and one that is not made
// but at a boundary and in the window behind it: what is left of the interval lies in a scratch register. An
// instruction with a REP prefix ends its block, and its further turns are blocks of their own, which do not count.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/time.h>

#include "pin.H"

#include "collector.h"

namespace
{

const INT32 FAILED = 125;
const UINT32 MOST_INSTRUCTIONS = 4096, LONGEST_INSTRUCTION = 15;

KNOB<std::string> stream_name(KNOB_MODE_WRITEONCE, "pintool", "stream", "probe.stream", "where to write");
KNOB<std::string> foreign(KNOB_MODE_WRITEONCE, "pintool", "foreign", "", "names of images without markers");
KNOB<UINT64> interval(KNOB_MODE_WRITEONCE, "pintool", "interval", "100000000", "instructions of an interval");
KNOB<UINT64> slack(KNOB_MODE_WRITEONCE, "pintool", "slack", "1000000", "instructions watched behind each boundary");
KNOB<UINT64> most_intervals(KNOB_MODE_WRITEONCE, "pintool", "most_intervals", "0", "then their length doubles; even");

struct collector state;
FILE *stream;
REG remaining; // instructions left in the interval, as state.remaining at any call of ours

// -- what the collector is lent

void *lend_memory(u64 bytes)
{
	return calloc(1, bytes);
}

int write_stream(const void *data, u64 bytes)
{
	return fwrite(data, 1, bytes, stream) != bytes || fflush(stream);
}

u64 read_clock()
{
	struct timeval now;

	gettimeofday(&now, nullptr);
	return static_cast<u64>(now.tv_sec) * 1000000000ULL + static_cast<u64>(now.tv_usec) * 1000ULL;
}

// -- the end

VOID leave_if_failed()
{
	if (state.failed == NOT_FAILED)
		return;
	fprintf(stderr, "probe: the stream %s cannot be written\n", stream_name.Value().c_str());
	PIN_ExitProcess(FAILED);
}

VOID finish(enum ending ending)
{
	collector_finish(&state, ending);
	fclose(stream);
	leave_if_failed();
}

VOID on_exit(INT32, VOID *)
{
	finish(PROGRAM_ENDED);
}

VOID on_fork(THREADID, const CONTEXT *, VOID *)
{
	finish(CHILD_STARTED);
	PIN_ExitProcess(FAILED);
}

VOID on_thread(THREADID thread, CONTEXT *context, INT32, VOID *)
{
	if (thread > 0) {
		finish(THREAD_STARTED);
		PIN_ExitProcess(FAILED);
	}
	PIN_SetContextReg(context, remaining, static_cast<ADDRINT>(state.remaining));
}

// A program that replaces itself is followed: the new one's tool begins the stream anew.
BOOL on_exec(CHILD_PROCESS, VOID *)
{
	return TRUE;
}

// -- analysis

ADDRINT PIN_FAST_ANALYSIS_CALL count(struct block *block, ADDRINT left, UINT32 instructions)
{
	block->executions += 1;
	return left - instructions;
}

// `first`: whether this is the first turn of a REP instruction, which is a block of its own.
ADDRINT PIN_FAST_ANALYSIS_CALL count_first(struct block *block, ADDRINT left, BOOL first)
{
	block->executions += first;
	return left - first;
}

ADDRINT PIN_FAST_ANALYSIS_CALL is_reached(ADDRINT left)
{
	return static_cast<i64>(left) <= 0;
}

ADDRINT PIN_FAST_ANALYSIS_CALL is_reached_first(ADDRINT left, BOOL first)
{
	return first & (static_cast<i64>(left) <= 0);
}

ADDRINT PIN_FAST_ANALYSIS_CALL reached(struct block *block, ADDRINT left)
{
	state.remaining = static_cast<i64>(left);
	collector_reached(&state, block);
	leave_if_failed();
	return static_cast<ADDRINT>(state.remaining);
}

// -- instrumentation

bool is_foreign(const std::string &path)
{
	const std::string name = path.substr(path.rfind('/') + 1);
	const std::string &prefixes = foreign.Value();

	for (size_t at = 0; at < prefixes.size();) {
		size_t end = prefixes.find(',', at);

		if (end == std::string::npos)
			end = prefixes.size();
		if (end > at && name.compare(0, end - at, prefixes, at, end - at) == 0)
			return true;
		at = end + 1;
	}
	return false;
}

// Code without a file (made at run time, the vDSO) is known by its address.
struct block *block_of(BBL bbl)
{
	u8 lengths[MOST_INSTRUCTIONS], last[LONGEST_INSTRUCTION] = {0};
	UINT32 instructions = 0;
	ADDRINT start = BBL_Address(bbl);

	for (INS ins = BBL_InsHead(bbl); INS_Valid(ins) && instructions < MOST_INSTRUCTIONS; ins = INS_Next(ins))
		lengths[instructions++] = static_cast<u8>(INS_Size(ins));

	INS tail = BBL_InsTail(bbl);

	PIN_SafeCopy(last, reinterpret_cast<VOID *>(INS_Address(tail)), INS_Size(tail));

	UINT32 offers = block_offers_marker(lengths, instructions, last, INS_IsControlFlow(tail));
	UINT32 size = static_cast<UINT32>(BBL_Size(bbl)), number = static_cast<UINT32>(BBL_NumIns(bbl));
	IMG img = IMG_FindByAddress(start);

	if (!IMG_Valid(img) || IMG_Name(img)[0] != '/')
		return collector_block(&state, NO_IMAGE, start, size, number, 0);

	u32 image = collector_image(&state, IMG_Name(img).c_str(), LINK_ADDRESS);

	return collector_block(&state, image, start - IMG_LoadOffset(img), size, number,
			       offers && !is_foreign(IMG_Name(img)));
}

VOID instrument_block(BBL bbl)
{
	struct block *block = block_of(bbl);
	INS head = BBL_InsHead(bbl);

	leave_if_failed();
	if (BBL_NumIns(bbl) == 1 && INS_HasRealRep(head)) {
		INS_InsertCall(head, IPOINT_BEFORE, reinterpret_cast<AFUNPTR>(count_first), IARG_FAST_ANALYSIS_CALL,
			       IARG_PTR, block, IARG_REG_VALUE, remaining, IARG_FIRST_REP_ITERATION, IARG_RETURN_REGS,
			       remaining, IARG_END);
		INS_InsertIfCall(head, IPOINT_BEFORE, reinterpret_cast<AFUNPTR>(is_reached_first),
				 IARG_FAST_ANALYSIS_CALL, IARG_REG_VALUE, remaining, IARG_FIRST_REP_ITERATION,
				 IARG_END);
		INS_InsertThenCall(head, IPOINT_BEFORE, reinterpret_cast<AFUNPTR>(reached), IARG_FAST_ANALYSIS_CALL,
				   IARG_PTR, block, IARG_REG_VALUE, remaining, IARG_RETURN_REGS, remaining, IARG_END);
		return;
	}
	BBL_InsertCall(bbl, IPOINT_BEFORE, reinterpret_cast<AFUNPTR>(count), IARG_FAST_ANALYSIS_CALL, IARG_PTR, block,
		       IARG_REG_VALUE, remaining, IARG_UINT32, block->instructions, IARG_RETURN_REGS, remaining,
		       IARG_END);
	BBL_InsertIfCall(bbl, IPOINT_BEFORE, reinterpret_cast<AFUNPTR>(is_reached), IARG_FAST_ANALYSIS_CALL,
			 IARG_REG_VALUE, remaining, IARG_END);
	BBL_InsertThenCall(bbl, IPOINT_BEFORE, reinterpret_cast<AFUNPTR>(reached), IARG_FAST_ANALYSIS_CALL, IARG_PTR,
			   block, IARG_REG_VALUE, remaining, IARG_RETURN_REGS, remaining, IARG_END);
}

VOID instrument(TRACE trace, VOID *)
{
	for (BBL bbl = TRACE_BblHead(trace); BBL_Valid(bbl); bbl = BBL_Next(bbl))
		instrument_block(bbl);
}

} // namespace

int main(int argc, char *argv[])
{
	static const struct host host = {lend_memory, write_stream, read_clock};

	if (PIN_Init(argc, argv)) {
		fprintf(stderr, "%s\n", KNOB_BASE::StringKnobSummary().c_str());
		return 1;
	}
	stream = fopen(stream_name.Value().c_str(), "wb");
	remaining = PIN_ClaimToolRegister();
	if (!stream || !REG_valid(remaining) || interval.Value() < 1) {
		fprintf(stderr, "probe: the stream %s cannot be written\n", stream_name.Value().c_str());
		return FAILED;
	}

	u64 length = interval.Value();

	collector_start(&state, &host, length, slack.Value() < length ? slack.Value() : length - 1,
			most_intervals.Value() & ~1ULL);
	TRACE_AddInstrumentFunction(instrument, nullptr);
	PIN_AddThreadStartFunction(on_thread, nullptr);
	PIN_AddForkFunction(FPOINT_BEFORE, on_fork, nullptr);
	PIN_AddFollowChildProcessFunction(on_exec, nullptr);
	PIN_AddFiniFunction(on_exit, nullptr);
	PIN_StartProgram();
	return 0;
}
