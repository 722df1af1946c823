/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flat phase image and the report, as docs/phase-image.md describes them and checkpoint/flat/image.py writes
 * and reads them. All integers are little-endian; offsets count from the start of the image; tables are aligned to
 * eight bytes. The pages are not in here: they are in a file of their own, in the order of the runs.
 */
#ifndef PROBE_IMAGE_H
#define PROBE_IMAGE_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long u64;
typedef long i64;

#define PAGE 4096UL
#define USER_END 0x7ffffffff000UL	 /* 47-bit addresses, less the last page: 5-level paging is refused */
#define IMAGE_MAGIC 0x3141544c46425250UL /* "PRBFLTA1" */
#define IMAGE_VERSION 9			 /* the newest; version 1 has no kinds of descriptors behind SAME_AS */
#define THREADS_VERSION 3		 /* behind the header comes the table of threads */
#define SHARED_VERSION 4		 /* the same, and the other tables of struct tables */
#define REPEATED_VERSION 5		 /* the same, and runs of one page repeated */
#define CLOCKS_VERSION 6		 /* the same, and clocks that go on */
#define NODE_VERSION 7			 /* the same, and clocks that are read by the node's vDSO */
#define TICKS_VERSION 8			 /* the same, and timers that run */
#define ALONE_VERSION 9			 /* the same, and sockets that nobody is connected to */
#define MOST_THREADS 256		 /* beside the first */
#define MOST_OBJECTS 64			 /* of shared memory */
#define MOST_PENDING 16384		 /* signals */
#define THREAD_ROOM 0x20000UL		 /* of the park, behind the image, for each of them */
#define VDSO_ROOM 0x20000UL		 /* at its end, for the node's vDSO and the pages that this reads */
#define IMAGE_MAX (64UL << 20)
#define SIGNALS 64
#define LIMITS 16

struct table {
	u64 offset;
	u64 count;
};

struct mapping {
	u64 start, end;
	u64 file_offset;
	u64 advice; /* bit n: madvise(n) */
	u32 prot;   /* as for mmap */
	u32 flags;  /* MAP_PRIVATE or MAP_SHARED, MAP_GROWSDOWN, MAP_NORESERVE */
	u32 file;   /* number of the copy plus one; 0: anonymous; with OF_OBJECT: number of the shared memory */
	u32 small;  /* 1: had no huge pages, and gets none while it is filled */
};

struct run {
	u64 address; /* with REPEATED: each of these pages has the contents of one page in the file */
	u64 pages;
};

#define REPEATED 1UL

#define OF_OBJECT 0x80000000U

/* Pages whose contents are in the image, in place of those in the pages file: the vDSO. */
struct patch {
	u64 address;
	u64 pages;
	u64 contents; /* offset */
};

enum descriptor_kind {
	OPEN_COPY = 1,
	OPEN_WRITTEN,
	OPEN_OUTPUT,
	OPEN_PATH,
	SAME_AS,
	OPEN_PIPE,   /* position: capacity, 0 for the usual one; file: the other end, itself where that is closed */
	OPEN_SOCKET, /* position: SO_SNDBUF; path: type; file: the other end. Itself: position: whether it listens */
	OPEN_EVENT,  /* position: count */
	OPEN_EPOLL,
	OPEN_TIMER,   /* position: clock; it runs where it has CONTENTS: a struct ticks */
	OPEN_SIGNALS, /* position: signals by bit */
	CONTENTS,     /* no descriptor, but what `number` has not read yet. position: offset; path: bytes */
	WATCH,	      /* nor this: the epoll set `number` watches `file`. flags: events; position: data */
	OPEN_MEMORY,  /* file: number of the shared memory; it comes before CONTENTS and WATCH */
};

struct descriptor {
	u32 number;
	u32 kind;
	u64 flags;    /* as for open(2) */
	u64 position; /* bytes; none for outputs and devices */
	u32 file;     /* number of the copy, or of the descriptor that this is a duplicate of */
	u32 cloexec;
	u64 path; /* offset of a string: OPEN_PATH */
};

/* Of a timer that runs, or has run: as for timerfd_settime(2), and expirations that nobody has read. */
struct ticks {
	u64 interval_s, interval_ns, value_s, value_ns;
	u64 ticks;
};

struct sigaction_entry {
	u64 handler, flags, restorer, mask;
};

struct registers {
	u64 r8, r9, r10, r11, r12, r13, r14, r15, di, si, bp, bx, dx, ax, cx, sp, ip, flags;
	u64 cs, ss, fs_base, gs_base;
};

/* prctl(PR_SET_MM_MAP), struct prctl_mm_map: the same order */
struct mm {
	u64 start_code, end_code, start_data, end_data, start_brk, brk, start_stack;
	u64 arg_start, arg_end, env_start, env_end;
	u64 auxv;
	u32 auxv_size, exe_fd;
};

struct limit {
	u64 soft, hard;
};

struct timer {
	u64 interval_s, interval_us, value_s, value_us;
};

struct header {
	u64 magic;
	u64 checksum; /* FNV-1a, 64 bits, of everything behind this field */
	u32 version;
	u32 header_size;
	u64 size;
	u64 park, park_size; /* addresses that nothing of the program uses */
	u64 pages;	     /* in the pages file */
	struct table mappings, runs, patches, descriptors, stamps, touch_order, calls, strings;
	/* For the parent: string offsets of the paths that copies and written files had, and of files that the phase
	 * opens by their paths; how many system calls it makes, and whether some change files by their paths. */
	struct table files, written, opened;
	u64 calls_made;
	u64 changes_paths;
	struct registers registers;
	u64 blocked_signals;
	u64 stack_pointer, stack_size; /* alternate signal stack */
	u32 stack_flags;
	u32 umask;
	u64 clear_tid, robust_list, robust_size;
	u64 rseq;
	u32 rseq_size, rseq_signature;
	u32 personality;
	u32 no_huge_pages; /* PR_SET_THP_DISABLE */
	u64 cwd;	   /* offset of a string */
	u8 name[16];
	struct mm mm;
	struct sigaction_entry actions[SIGNALS]; /* [n - 1] is signal n */
	struct limit limits[LIMITS];
	struct timer timers[3]; /* real, virtual, profiling */
	/* Extended state: parts whose bit in xstate is not set are unused. */
	u64 xstate;
	u8 legacy[512]; /* FXSAVE */
	u8 ymm_high[256];
	u8 opmask[64];
	u8 zmm_high[512];
	u8 zmm_more[1024];
};

/* A thread beside the first. The header has the first one's under the same names. */
struct thread {
	struct registers registers;
	u64 blocked_signals;
	u64 stack_pointer, stack_size;
	u32 stack_flags;
	u32 rseq_size;
	u64 clear_tid, robust_list, robust_size;
	u64 rseq;
	u32 rseq_signature, unused;
	u8 name[16];
	u64 xstate;
	u8 legacy[512];
	u8 ymm_high[256];
	u8 opmask[64];
	u8 zmm_high[512];
	u8 zmm_more[1024];
};

/* Memory that several mappings and descriptors may lead to: anonymous shared memory, a memfd. */
struct object {
	u64 size; /* bytes */
	u64 name; /* offset of a string */
	u32 mode; /* permissions */
	u32 seals;
};

/* Pages of shared memory that hold something, in the order of its pages file. */
struct piece {
	u32 object, unused;
	u64 offset; /* bytes */
	u64 pages;
};

/* A signal that was sent and not yet delivered. */
struct pending {
	u32 to_thread; /* 1: to the first thread alone; 0: to the process */
	u32 unused;
	u8 information[128]; /* siginfo_t */
};

/* A clock: what it said at the capture, and once restored what the program's vDSO adds to the node's. */
struct clock {
	u64 seconds, nanoseconds;
};

/* Realtime, monotonic, since boot; CPU time of the process, of the thread; raw, atomic. Each a struct clock in a patch. */
#define CLOCKS 7
/* Bytes of the table: behind the clocks stands one that differs by nothing. Of NODE_VERSION the address follows of what
 * is called in place of the system call; 0: nothing. Where the first clock says 0 all are the node's. */
#define CLOCK_TABLE_BYTES ((CLOCKS + 1) * sizeof(struct clock))

/* Behind the header. Of version 3 the first alone, of versions 4 and 5 all but the clocks. */
struct tables {
	struct table threads, objects, pieces;
	struct table present; /* struct run: pages of shared mappings that the page table had */
	struct table pending;
	u64 contents; /* number of the copy that is the pages file of shared memory */
	u64 clocks;   /* address of the clocks; 0: none */
};

/* Where the restorer is, for whoever reads a failure; checkpoint/restore/direct_restore.py has the sentences. */
enum step {
	STEP_START = 1,	 /* arguments and inherited descriptors */
	STEP_PARENT,	 /* whoever started us is gone */
	STEP_IMAGE,	 /* the image cannot be read */
	STEP_FORMAT,	 /* not an image, or of another version */
	STEP_CHECKSUM,	 /* the image is damaged */
	STEP_TABLE,	 /* a table or address in it is out of range; detail: which table */
	STEP_PARK,	 /* the address range for the restorer itself is taken */
	STEP_PAGES,	 /* the pages file is too short or cannot be read; address: the page */
	STEP_UNMAP,	 /* the old address space cannot be removed */
	STEP_OPEN,	 /* the copy of a mapped file; detail: its number */
	STEP_MAP,	 /* address: the mapping */
	STEP_ADVISE,	 /* address: the mapping; detail: the advice */
	STEP_PROTECT,	 /* address: the mapping */
	STEP_STAMP,	 /* address: the page of stamps */
	STEP_LAYOUT,	 /* PR_SET_MM_MAP */
	STEP_SEGMENT,	 /* FS or GS base */
	STEP_SIGNAL,	 /* detail: the signal */
	STEP_LIMIT,	 /* detail: the limit */
	STEP_FOLDER,	 /* the working directory */
	STEP_DESCRIPTOR, /* detail: the number */
	STEP_STATE,	 /* the processor lacks a part of the state; detail: the part */
	STEP_CONFINE,	 /* no_new_privs, landlock or seccomp */
	STEP_TIMER,	 /* detail: which interval timer */
	STEP_THREAD,	 /* robust list or alternate stack; address */
	STEP_ROOM,	 /* no room for descriptors; detail: from which number on */
	STEP_AGENT,	 /* starting the restorer; told by whoever starts it */
	STEP_CLONE,	 /* starting a thread; detail: its number in the table */
	STEP_OBJECT,	 /* making shared memory; detail: its number */
	STEP_PENDING,	 /* sending a signal that was pending; detail: which */
};

/* First page of the control file, which the parent reads; the stamp pages follow it. */
enum progress { NOT_YET = 0, FAILED = 1, RESTORED = 2 };

struct report {
	u32 progress;
	u32 step;
	i32 error;  /* errno */
	u32 copied; /* mappings that were copied because the file system is mounted noexec */
	u64 address;
	u64 detail;
	u64 restored_s, restored_ns; /* CLOCK_MONOTONIC */
	u32 confined;		     /* enum confinement */
	u32 unused;
};

/* What could be taken away here: changing files outside its folder, system calls. And how pages show (observe.c). */
enum confinement { WRITES_CONFINED = 1, CALLS_FILTERED = 2, TOUCHES_IN_GROUPS = 4 };

/* Bits of the second argument. */
enum option {
	TOUCH_IN_ORDER = 1,
	ONLY_RECORDED_CALLS = 2,
	CONFINE_WRITES = 4,
	FILTER_CALLS = 8,
	ANY_FOLDER = 16,
	MAP_LAZILY = 32,     /* for a tracer: observe.c */
	TRACE_MAPPINGS = 64, /* likewise */
	ASK_KERNEL = 128,    /* for a tracer that steps: no code of the node's runs */
	STAY_APART = 256,    /* threads keep a processor each; the parent lets them go */
	STOP_RESTORED = 512, /* for a tracer that does not want to see the restorer's own calls */
};

/* Descriptors that the parent passes. */
enum inherited { IMAGE_FD = 3, PAGES_FD, COPIES_FD, SCRATCH_FD, CONTROL_FD, INHERITED_END };

#endif
