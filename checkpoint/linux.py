# SPDX-License-Identifier: Apache-2.0
"""Numbers of the Linux kernel's interface on x86-64 that Python's own modules do not name, by the kernel's names.

A test compares them with the kernel's headers. checkpoint/binary/syscall_names.py has the system calls, ioctl numbers
and message layouts stand where they are used. Python 3.8, standard library.
"""

from __future__ import annotations

PAGE_SIZE = 4096
"""Bytes of a page: of memory, of a checkpoint, and of a probe's pages."""

# linux/personality.h
ADDR_NO_RANDOMIZE = 0x40000
PERSONALITY_QUERY = 0xFFFFFFFF
"""Given to personality(2), it says what is set and sets nothing."""

# linux/prctl.h
PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 3, 4, 36, 38
PR_GET_TID_ADDRESS, PR_GET_THP_DISABLE = 40, 42

# linux/sched.h
CLONE_NEWNS, CLONE_NEWIPC = 0x20000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

# linux/mount.h, sys/mount.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

# linux/wait.h
WALL = 0x40000000
"""__WALL: wait for threads and children of every kind."""

# linux/kcmp.h
KCMP_VM = 1

# linux/fcntl.h, linux/auxvec.h, asm-generic/siginfo.h
AT_FDCWD = -100
AT_ENTRY, AT_RANDOM = 9, 25
SI_KERNEL = 0x80

# asm-generic/mman.h
MAP_GROWSDOWN, MAP_NORESERVE, MAP_HUGETLB, MAP_FIXED_NOREPLACE = 0x100, 0x4000, 0x40000, 0x100000
MAP_FIXED, MAP_NONBLOCK, MREMAP_MAYMOVE, MREMAP_FIXED = 0x10, 0x10000, 0x1, 0x2

# linux/ptrace.h, asm/ptrace-abi.h
PTRACE_TRACEME, PTRACE_PEEKTEXT, PTRACE_POKEUSER, PTRACE_CONT, PTRACE_SINGLESTEP = 0, 1, 6, 7, 9
PTRACE_GETREGS, PTRACE_SETREGS = 12, 13
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SYSCALL = 16, 17, 24
PTRACE_SETOPTIONS, PTRACE_GETEVENTMSG, PTRACE_GETSIGINFO = 0x4200, 0x4201, 0x4202
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_LISTEN = 0x4206, 0x4207, 0x4208
PTRACE_GETREGSET, PTRACE_PEEKSIGINFO, PTRACE_GETSIGMASK, PTRACE_SETSIGMASK = 0x4204, 0x4209, 0x420A, 0x420B
PTRACE_GET_RSEQ_CONFIGURATION = 0x420F
PTRACE_O_TRACESYSGOOD, PTRACE_O_TRACEFORK, PTRACE_O_TRACEVFORK, PTRACE_O_TRACECLONE = 0x1, 0x2, 0x4, 0x8
PTRACE_O_TRACEEXEC, PTRACE_O_TRACEEXIT, PTRACE_O_TRACESECCOMP, PTRACE_O_EXITKILL = 0x10, 0x40, 0x80, 0x100000
PTRACE_EVENT_FORK, PTRACE_EVENT_VFORK, PTRACE_EVENT_CLONE, PTRACE_EVENT_EXEC = 1, 2, 3, 4
PTRACE_EVENT_EXIT, PTRACE_EVENT_SECCOMP, PTRACE_EVENT_STOP = 6, 7, 128
