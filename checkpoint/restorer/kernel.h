/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of x86-64 Linux that the restorer makes, without a C library. A negative result is -errno. */
#ifndef PROBE_KERNEL_H
#define PROBE_KERNEL_H

#include "image.h"

/* Several to a line. */
/* clang-format off */
enum call {
	SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_fstat = 5, SYS_lseek = 8, SYS_mmap = 9, SYS_mprotect = 10, SYS_munmap = 11,
	SYS_brk = 12, SYS_rt_sigaction = 13, SYS_rt_sigreturn = 15, SYS_ioctl = 16, SYS_pread = 17, SYS_pwrite = 18, SYS_mremap = 25, SYS_madvise = 28,
	SYS_setitimer = 38, SYS_getpid = 39, SYS_sendfile = 40, SYS_socket = 41, SYS_bind = 49, SYS_listen = 50, SYS_socketpair = 53, SYS_setsockopt = 54, SYS_getsockopt = 55, SYS_kill = 62, SYS_fcntl = 72, SYS_ftruncate = 77, SYS_chdir = 80, SYS_fchdir = 81, SYS_fchmod = 91, SYS_umask = 95,
	SYS_getppid = 110, SYS_capget = 125, SYS_capset = 126, SYS_rt_sigqueueinfo = 129, SYS_sigaltstack = 131, SYS_personality = 135, SYS_gettid = 186, SYS_sched_yield = 24, SYS_clone = 56, SYS_futex = 202, SYS_sched_setaffinity = 203, SYS_sched_getaffinity = 204, SYS_prctl = 157, SYS_arch_prctl = 158,
	SYS_set_tid_address = 218, SYS_restart_syscall = 219, SYS_clock_gettime = 228, SYS_exit_group = 231, SYS_epoll_ctl = 233, SYS_tgkill = 234,
	SYS_openat = 257, SYS_set_robust_list = 273, SYS_timerfd_create = 283, SYS_timerfd_settime = 286, SYS_signalfd4 = 289, SYS_eventfd2 = 290,
	SYS_epoll_create1 = 291, SYS_dup3 = 292, SYS_pipe2 = 293, SYS_preadv = 295, SYS_rt_tgsigqueueinfo = 297, SYS_prlimit = 302, SYS_seccomp = 317, SYS_memfd_create = 319,
	SYS_userfaultfd = 323, SYS_rseq = 334, SYS_landlock_create_ruleset = 444, SYS_landlock_add_rule = 445, SYS_landlock_restrict_self = 446, SYS_close_range = 436,
};

enum {
	EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, EACCES = 13, EINVAL = 22, ENOTTY = 25, ENOSYS = 38,
	PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4,
	MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANONYMOUS = 0x20, MAP_GROWSDOWN = 0x100,
	MAP_NORESERVE = 0x4000, MAP_FIXED_NOREPLACE = 0x100000,
	PR_SET_PDEATHSIG = 1, PR_SET_NAME = 15, PR_SET_MM = 35, PR_SET_MM_MAP = 14, PR_SET_NO_NEW_PRIVS = 38,
	PR_SET_THP_DISABLE = 41,
	ARCH_SET_GS = 0x1001, ARCH_SET_FS = 0x1002,
	O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_ACCMODE = 3, O_CREAT = 0100, O_TRUNC = 01000, O_APPEND = 02000, O_NONBLOCK = 04000,
	O_DIRECTORY = 0200000, O_SYNC = 04010000, O_PATH = 010000000, O_CLOEXEC = 02000000,
	F_DUPFD = 0, F_SETFD = 2, F_SETFL = 4, F_SETPIPE_SZ = 1031, F_GETPIPE_SZ = 1032, F_ADD_SEALS = 1033, FD_CLOEXEC = 1,
	AF_UNIX = 1, SOCK_STREAM = 1, SOCK_DGRAM = 2, SOCK_SEQPACKET = 5, SOL_SOCKET = 1, SO_SNDBUF = 7,
	EPOLL_CTL_ADD = 1, TFD_IOC_SET_TICKS = 0x40085400,
	SS_ONSTACK = 1,
	F_SEAL_SEAL = 1, F_SEAL_SHRINK = 2, F_SEAL_GROW = 4, F_SEAL_WRITE = 8, F_SEAL_FUTURE_WRITE = 16, F_SEAL_EXEC = 32,
	MFD_CLOEXEC = 1, MFD_ALLOW_SEALING = 2, MFD_EXEC = 16,
	SIGTRAP = 5, SIGKILL = 9, SIGSTOP = 19,
	RLIMIT_CORE = 4, RLIMIT_NPROC = 6, RLIMIT_NOFILE = 7,
	FUTEX_WAIT = 0, FUTEX_WAKE = 1,
	CLOCK_REALTIME = 0, CLOCK_MONOTONIC = 1, CLOCK_PROCESS_CPUTIME_ID = 2, CLOCK_THREAD_CPUTIME_ID = 3,
	CLOCK_MONOTONIC_RAW = 4, CLOCK_BOOTTIME = 7, CLOCK_TAI = 11,
};
/* clang-format on */

struct vector {
	u64 address, size;
};

static inline __attribute__((always_inline)) i64 call6(u64 number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	i64 result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define CALL0(n) call6(n, 0, 0, 0, 0, 0, 0)
#define CALL1(n, a) call6(n, (u64)(a), 0, 0, 0, 0, 0)
#define CALL2(n, a, b) call6(n, (u64)(a), (u64)(b), 0, 0, 0, 0)
#define CALL3(n, a, b, c) call6(n, (u64)(a), (u64)(b), (u64)(c), 0, 0, 0)
#define CALL4(n, a, b, c, d) call6(n, (u64)(a), (u64)(b), (u64)(c), (u64)(d), 0, 0)
#define CALL5(n, a, b, c, d, e) call6(n, (u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), 0)
#define CALL6(n, a, b, c, d, e, f) call6(n, (u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (u64)(f))

#endif
