/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The Valgrind tool: gives every basic block that Valgrind translates to the collector, and counts it in place.
 *
 *	valgrind --tool=probe --stream=FILE [--interval=N] [--slack=N] [--most-intervals=N] [--foreign=PREFIX,...]
 *		 [--smc-check=all --writable-code=yes] PROGRAM
 *
 * A block is what Valgrind translates at once: straight code up to a transfer of control, or to the number of
 * instructions it stops at. Blocks overlap where code is jumped into. Chasing of jumps and unrolling of loops are off:
 * with them a block could be left in its middle.
 *
 * Counting costs two additions, a comparison and a call that is not taken. An instruction with a REP prefix is
 * translated as a loop around a block of its own; only its first turn is counted.
 */
#include "pub_tool_basics.h"
#include "pub_tool_aspacemgr.h"
#include "pub_tool_libcassert.h"
#include "pub_tool_libcbase.h"
#include "pub_tool_libcfile.h"
#include "pub_tool_libcprint.h"
#include "pub_tool_libcproc.h"
#include "pub_tool_machine.h"
#include "pub_tool_mallocfree.h"
#include "pub_tool_options.h"
#include "pub_tool_threadstate.h"
#include "pub_tool_tooliface.h"
#include "pub_tool_vki.h"

#include "collector.h"

/* Of the core, in every release so far: a descriptor out of the program's way, which would be given other numbers. */
extern Int VG_(safe_fd)(Int descriptor);

#define FAILED 125
#define MOST_LENGTHS 256

static struct collector collector;
static const HChar *stream_name = "probe.stream";
static const HChar *foreign = ""; /* how the names of images begin whose code no marker may lie in */
static Long interval = 100000000, slack = 1000000, most_intervals = 0;
static Bool writable_code = False; /* may a program write to code that a file holds */
static Int stream = -1;

/* Address of the REP instruction that goes back to itself, while it does. */
static Addr repeating;

/* -- what the collector is lent */

static void *lend_memory(u64 bytes)
{
	return VG_(calloc)("probe.collector", 1, bytes);
}

static int write_stream(const void *data, u64 bytes)
{
	const u8 *from = data;

	while (bytes) {
		Int done = VG_(write)(stream, from, (Int)bytes);

		if (done <= 0) {
			VG_(umsg)("probe: the stream %s cannot be written: error %d\n", stream_name, -done);
			return -1;
		}
		from += done;
		bytes -= (u64)done;
	}
	return 0;
}

static u64 read_clock(void)
{
	struct vki_timespec now;

	VG_(clock_gettime)(&now, VKI_CLOCK_MONOTONIC);
	return (u64)now.tv_sec * 1000000000ULL + (u64)now.tv_nsec;
}

/* -- the end */

static void finish(enum ending ending)
{
	collector_finish(&collector, ending);
	VG_(close)(stream);
	if (collector.failed)
		VG_(exit)(FAILED);
}

static void on_exit(Int status)
{
	(void)status;
	finish(PROGRAM_ENDED);
}

/* The first thread has no parent. */
static void on_thread(ThreadId parent, ThreadId child)
{
	(void)child;
	if (parent == VG_INVALID_THREADID)
		return;
	finish(THREAD_STARTED);
	VG_(exit)(FAILED);
}

static void on_fork(ThreadId thread)
{
	(void)thread;
	finish(CHILD_STARTED);
	VG_(exit)(FAILED);
}

/* Valgrind goes on with what it has translated of a file's code unless it looks for changes, which takes its time. */
static void on_protection(Addr start, SizeT length, Bool readable, Bool writable, Bool executable)
{
	const NSegment *segment = VG_(am_find_nsegment)(start);

	(void)length, (void)readable;
	if (writable_code || !writable || !executable || !segment || segment->kind != SkFileC)
		return;
	finish(CODE_WRITABLE);
	VG_(exit)(FAILED);
}

static void on_mapping(Addr start, SizeT length, Bool readable, Bool writable, Bool executable, ULong handle)
{
	(void)handle;
	on_protection(start, length, readable, writable, executable);
}

/* -- blocks */

static Bool is_foreign(const HChar *path)
{
	const HChar *name = VG_(basename)(path);

	for (const HChar *prefix = foreign; *prefix;) {
		const HChar *end = VG_(strchr)(prefix, ',');
		SizeT length = end ? (SizeT)(end - prefix) : VG_(strlen)(prefix);

		if (length && !VG_(strncmp)(name, prefix, length))
			return True;
		prefix += length + (end != NULL);
	}
	return False;
}

/* The block that begins at `start`. Code without a file, or of Valgrind's own, is known by its address. */
static struct block *block_at(Addr start, UInt size, UInt instructions, Bool offers_marker)
{
	const NSegment *segment = VG_(am_find_nsegment)(start);
	const HChar *path = segment && segment->kind == SkFileC ? VG_(am_get_filename)(segment) : NULL;
	u32 image = path ? collector_image(&collector, path, FILE_OFFSET) : NO_IMAGE;
	u64 offset = image != NO_IMAGE ? start - segment->start + (u64)segment->offset : start;
	Bool markable = offers_marker && image != NO_IMAGE && !segment->hasW && !is_foreign(path);

	return collector_block(&collector, image, offset, size, instructions, markable);
}

static VG_REGPARM(1) void on_reached(struct block *block)
{
	collector_reached(&collector, block);
	if (collector.failed)
		VG_(exit)(FAILED);
}

/* -- instrumentation */

static IRExpr *value(IRSB *out, IRType type, IRExpr *expression)
{
	IRTemp made = newIRTemp(out->tyenv, type);

	addStmtToIRSB(out, IRStmt_WrTmp(made, expression));
	return IRExpr_RdTmp(made);
}

static IRExpr *constant(ULong number)
{
	return IRExpr_Const(IRConst_U64(number));
}

static IRExpr *load(IRSB *out, const void *place)
{
	return value(out, Ity_I64, IRExpr_Load(Iend_LE, Ity_I64, mkIRExpr_HWord((HWord)place)));
}

static void store(IRSB *out, const void *place, IRExpr *number)
{
	addStmtToIRSB(out, IRStmt_Store(Iend_LE, mkIRExpr_HWord((HWord)place), number));
}

/* One execution of `block`. `first`: 1 or 0 at run time, whether it is one at all; NULL: always. */
static void add_counting(IRSB *out, struct block *block, IRExpr *first)
{
	IRExpr *once = first ? first : constant(1);
	IRExpr *instructions = first ? first : constant(block->instructions);
	IRExpr *executions = value(out, Ity_I64, IRExpr_Binop(Iop_Add64, load(out, &block->executions), once));
	IRExpr *remaining;
	IRDirty *call;

	tl_assert(!first || block->instructions == 1);
	store(out, &block->executions, executions);
	remaining = value(out, Ity_I64, IRExpr_Binop(Iop_Sub64, load(out, &collector.remaining), instructions));
	store(out, &collector.remaining, remaining);
	call = unsafeIRDirty_0_N(1, "on_reached", VG_(fnptr_to_fnentry)((void *)&on_reached),
				 mkIRExprVec_1(mkIRExpr_HWord((HWord)block)));
	if (first) {
		/* In a window `remaining` is 0 already: turns after the first must not look like an execution. */
		IRExpr *skipped = value(out, Ity_I64, IRExpr_Binop(Iop_Sub64, first, constant(1)));
		IRExpr *masked = value(out, Ity_I64, IRExpr_Unop(Iop_Not64, skipped));
		IRExpr *below = value(out, Ity_I64, IRExpr_Binop(Iop_Sub64, remaining, constant(1)));

		/* Negative where `remaining` <= 0 and `first` is 1. */
		call->guard =
			value(out, Ity_I1,
			      IRExpr_Binop(Iop_CmpLT64S, value(out, Ity_I64, IRExpr_Binop(Iop_And64, below, masked)),
					   constant(0)));
	} else {
		call->guard = value(out, Ity_I1, IRExpr_Binop(Iop_CmpLE64S, remaining, constant(0)));
	}
	addStmtToIRSB(out, IRStmt_Dirty(call));
}

/* What is to know of a translation before it is instrumented. */
struct shape {
	Addr start, last; /* addresses of the first and the last instruction */
	UInt instructions, size, last_size;
	u8 lengths[MOST_LENGTHS];
};

static struct shape shape_of(const IRSB *in, Int from)
{
	struct shape shape = {0};

	for (Int i = from; i < in->stmts_used; i++) {
		const IRStmt *statement = in->stmts[i];

		if (!statement || statement->tag != Ist_IMark)
			continue;
		if (!shape.instructions)
			shape.start = statement->Ist.IMark.addr;
		tl_assert(shape.instructions < MOST_LENGTHS);
		shape.lengths[shape.instructions++] = (u8)statement->Ist.IMark.len;
		shape.last = statement->Ist.IMark.addr;
		shape.last_size = statement->Ist.IMark.len;
		shape.size = (UInt)(shape.last + shape.last_size - shape.start);
	}
	return shape;
}

static IRSB *instrument(VgCallbackClosure *closure, IRSB *in, const VexGuestLayout *layout,
			const VexGuestExtents *extents, const VexArchInfo *host, IRType guest_word, IRType host_word)
{
	IRSB *out = deepCopyIRSBExceptStmts(in);
	struct shape shape;
	struct block *block;
	Bool repeats, falls_through;
	Int i = 0;

	(void)closure, (void)layout, (void)extents, (void)host;
	tl_assert(guest_word == Ity_I64 && host_word == Ity_I64);
	while (i < in->stmts_used && (!in->stmts[i] || in->stmts[i]->tag != Ist_IMark))
		addStmtToIRSB(out, in->stmts[i++]);
	shape = shape_of(in, i);
	if (!shape.instructions)
		return in;
	repeats = is_repeated_string((const u8 *)shape.last, shape.last_size);
	falls_through = in->jumpkind == Ijk_Boring && in->next->tag == Iex_Const &&
			in->next->Iex.Const.con->Ico.U64 == shape.last + shape.last_size;
	block = block_at(
		shape.start, shape.size, shape.instructions,
		block_offers_marker(shape.lengths, shape.instructions, (const u8 *)shape.last, !falls_through));
	if (!block) {
		VG_(umsg)("probe: no memory, or the stream %s cannot be written\n", stream_name);
		VG_(exit)(FAILED);
	}
	if (repeats && shape.instructions == 1) {
		IRExpr *again = load(out, &repeating);
		IRExpr *elsewhere = value(out, Ity_I1, IRExpr_Binop(Iop_CmpNE64, again, constant(shape.start)));

		add_counting(out, block, value(out, Ity_I64, IRExpr_Unop(Iop_1Uto64, elsewhere)));
	} else {
		add_counting(out, block, NULL);
	}
	if (repeats)
		store(out, &repeating, constant(0));
	for (; i < in->stmts_used; i++) {
		IRStmt *statement = in->stmts[i];

		if (!statement)
			continue;
		if (repeats && statement->tag == Ist_Exit && statement->Ist.Exit.dst->Ico.U64 == shape.last)
			store(out, &repeating,
			      value(out, Ity_I64,
				    IRExpr_ITE(statement->Ist.Exit.guard, constant(shape.last), constant(0))));
		addStmtToIRSB(out, statement);
	}
	if (repeats && in->next->tag == Iex_Const && in->next->Iex.Const.con->Ico.U64 == shape.last)
		store(out, &repeating, constant(shape.last));
	return out;
}

/* -- start */

static Bool process_option(const HChar *argument)
{
	/* These macros bring their parentheses along. */
	/* clang-format off */
	if VG_STR_CLO(argument, "--stream", stream_name) {}
	else if VG_STR_CLO(argument, "--foreign", foreign) {}
	else if VG_BINT_CLO(argument, "--interval", interval, 1000, 1LL << 50) {}
	else if VG_BINT_CLO(argument, "--slack", slack, 0, 1LL << 50) {}
	else if VG_BINT_CLO(argument, "--most-intervals", most_intervals, 0, 1LL << 30) {}
	else if VG_BOOL_CLO(argument, "--writable-code", writable_code) {}
	else
		return False;
	/* clang-format on */
	return True;
}

static void print_usage(void)
{
	VG_(printf)("    --stream=<file>           where to write [probe.stream]\n"
		    "    --interval=<n>            instructions of an interval [100000000]\n"
		    "    --slack=<n>               instructions watched behind each boundary [1000000]\n"
		    "    --most-intervals=<n>      then their length doubles; even [0: never]\n"
		    "    --foreign=<prefix>,...    names of images without markers []\n"
		    "    --writable-code=no|yes    of files, with --smc-check=all; no: the trace ends there [no]\n");
}

static void print_debug_usage(void)
{
	VG_(printf)("    (none)\n");
}

static void begin(void)
{
	static const struct host host = {lend_memory, write_stream, read_clock};
	SysRes opened = VG_(open)(stream_name, VKI_O_WRONLY | VKI_O_CREAT | VKI_O_TRUNC, 0600);

	if (sr_isError(opened)) {
		VG_(umsg)("probe: the stream %s cannot be written: error %lu\n", stream_name, sr_Err(opened));
		VG_(exit)(FAILED);
	}
	stream = VG_(safe_fd)((Int)sr_Res(opened));
	collector_start(&collector, &host, (u64)interval, (u64)(slack < interval ? slack : interval - 1),
			(u64)(most_intervals & ~1LL));
}

static void describe(void)
{
	VG_(details_name)("probe");
	VG_(details_version)(NULL);
	VG_(details_description)("basic-block vectors for performance probes");
	VG_(details_copyright_author)("under GPL-2.0-or-later.");
	VG_(details_bug_reports_to)("the authors of probe");
	VG_(details_avg_translation_sizeB)(250);
	VG_(basic_tool_funcs)(begin, instrument, on_exit);
	VG_(needs_command_line_options)(process_option, print_usage, print_debug_usage);
	VG_(track_pre_thread_ll_create)(on_thread);
	VG_(track_new_mem_startup)(on_mapping);
	VG_(track_new_mem_mmap)(on_mapping);
	VG_(track_change_mem_mprotect)(on_protection);
	VG_(atfork)(on_fork, NULL, NULL);
	VG_(clo_vex_control).guest_chase = False;
	VG_(clo_vex_control).iropt_unroll_thresh = 0;
}

VG_DETERMINE_INTERFACE_VERSION(describe)
