# SPDX-License-Identifier: Apache-2.0
"""Field numbers of the messages in CRIU's images, by the names that CRIU's .proto files give them (CRIU 4.1, images/).

One class per message, with the fields that are used here; a class's docstring begins with the message's name. A test
compares names and numbers with the descriptions of the messages that the installed CRIU carries. Python 3.8, standard
library.
"""

from __future__ import annotations

REGISTERS = (
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9",
    "r8", "ax", "cx", "dx", "si", "di", "orig_ax", "ip", "cs",
    "flags", "sp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip
"""Fields 1 to 27 of user_x86_regs_entry, in order."""


class InventoryEntry:
    """inventory_entry (inventory.proto): the one entry of inventory.img."""

    img_version = 1


class PstreeEntry:
    """pstree_entry (pstree.proto): one process, in pstree.img."""

    pid, ppid, threads = 1, 2, 5


class CoreEntry:
    """core_entry (core.proto): the one entry of core-PID.img."""

    mtype, thread_info, tc, thread_core = 1, 2, 3, 5


class TaskCoreEntry:
    """task_core_entry (core.proto): core_entry.tc."""

    task_state, blk_sigset, comm, timers, rlimits, signals_s, old_seccomp_mode, sigactions = 1, 5, 6, 7, 8, 10, 11, 15


class ThreadCoreEntry:
    """thread_core_entry (core.proto): core_entry.thread_core."""

    futex_rla, futex_rla_len, blk_sigset, sas, signals_p, seccomp_mode, rseq_entry = 1, 2, 6, 7, 9, 11, 15


class ThreadSasEntry:
    """thread_sas_entry (core.proto): the alternate signal stack, thread_core_entry.sas."""

    ss_sp, ss_size, ss_flags = 1, 2, 3


class RseqEntry:
    """rseq_entry (rseq.proto): thread_core_entry.rseq_entry."""

    rseq_abi_pointer, rseq_abi_size, signature = 1, 2, 3


class TaskKobjIdsEntry:
    """task_kobj_ids_entry (core.proto): the one entry of ids-PID.img."""

    files_id = 2


class TaskTimersEntry:
    """task_timers_entry (timer.proto): task_core_entry.timers."""

    real, virt, prof, posix = 1, 2, 3, 4


class ItimerEntry:
    """itimer_entry (timer.proto): task_timers_entry.real, .virt, .prof."""

    isec, iusec, vsec, vusec = 1, 2, 3, 4


class TaskRlimitsEntry:
    """task_rlimits_entry (core.proto): task_core_entry.rlimits."""

    rlimits = 1


class RlimitEntry:
    """rlimit_entry (rlimit.proto): task_rlimits_entry.rlimits."""

    cur, max = 1, 2


class SignalQueueEntry:
    """signal_queue_entry (siginfo.proto): task_core_entry.signals_s, thread_core_entry.signals_p."""

    signals = 1


class SiginfoEntry:
    """siginfo_entry (siginfo.proto): signal_queue_entry.signals."""

    siginfo = 1


class SaEntry:
    """sa_entry (sa.proto): task_core_entry.sigactions, without SIGKILL and SIGSTOP."""

    sigaction, flags, restorer, mask = 1, 2, 3, 4


class ThreadInfoX86:
    """thread_info_x86 (core-x86.proto): core_entry.thread_info."""

    clear_tid_addr, gpregs, fpregs, tls = 1, 2, 3, 4


class UserX86RegsEntry:
    """user_x86_regs_entry (core-x86.proto): thread_info_x86.gpregs; see REGISTERS for the fields before."""

    mode = 28


class UserX86FpregsEntry:
    """user_x86_fpregs_entry (core-x86.proto): thread_info_x86.fpregs, in the order of FXSAVE."""

    cwd, swd, twd, fop, rip, rdp, mxcsr, mxcsr_mask, st_space, xmm_space, xsave = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13


class UserX86XsaveEntry:
    """user_x86_xsave_entry (core-x86.proto): user_x86_fpregs_entry.xsave."""

    xstate_bv, ymmh_space, opmask_reg, zmm_upper, hi16_zmm, pkru, cet = 1, 2, 5, 6, 7, 8, 9


class UserX86CetEntry:
    """user_x86_cet_entry (core-x86.proto): the shadow stack, user_x86_xsave_entry.cet."""

    cet = 1


class UserDescT:
    """user_desc_t (core-x86.proto): thread_info_x86.tls."""

    usable = 10


class FsEntry:
    """fs_entry (fs.proto): the one entry of fs-PID.img."""

    cwd_id, root_id, umask = 1, 2, 3


class MmEntry:
    """mm_entry (mm.proto): the one entry of mm-PID.img."""

    mm_start_code, mm_end_code, mm_start_data, mm_end_data, mm_start_stack, mm_start_brk, mm_brk = 1, 2, 3, 4, 5, 6, 7
    mm_arg_start, mm_arg_end, mm_env_start, mm_env_end = 8, 9, 10, 11
    exe_file_id, vmas, aios, thp_disabled = 12, 14, 16, 17


class VmaEntry:
    """vma_entry (vma.proto): mm_entry.vmas."""

    start, end, pgoff, shmid, prot, flags, status, madv = 1, 2, 3, 4, 5, 6, 7, 9


class FdinfoEntry:
    """fdinfo_entry (fdinfo.proto): one descriptor, in fdinfo-N.img."""

    id, flags, type, fd = 1, 2, 3, 4


class FileEntry:
    """file_entry (fdinfo.proto): one open file, in files.img."""

    type, id, reg, efd, epfd, sgfd, tfd, usk, pipe = 1, 2, 3, 8, 9, 10, 12, 16, 18


class RegFileEntry:
    """reg_file_entry (regfile.proto): file_entry.reg."""

    flags, pos, name, size, mode = 2, 3, 6, 8, 10


class RemapFilePathEntry:
    """remap_file_path_entry (remap-file-path.proto): one removed file, in remap-fpath.img."""

    orig_id, remap_id, remap_type = 1, 2, 3


class GhostFileEntry:
    """ghost_file_entry (ghost-file.proto): the first entry of ghost-file-N.img, whose contents follow."""

    mode, chunks, size = 3, 9, 10


class GhostChunkEntry:
    """ghost_chunk_entry (ghost-file.proto): a piece of the contents, which follows."""

    len, off = 1, 2


class FownEntry:
    """fown_entry (fown.proto): whom a descriptor sends signals to."""

    pid = 5


class PipeEntry:
    """pipe_entry (pipe.proto): file_entry.pipe, one end."""

    pipe_id, flags, fown = 2, 3, 4


class PipeDataEntry:
    """pipe_data_entry (pipe-data.proto): what is in a pipe, in pipes-data.img; the bytes follow."""

    pipe_id, bytes, size = 1, 2, 3


class EventfdFileEntry:
    """eventfd_file_entry (eventfd.proto): file_entry.efd."""

    flags, fown, counter = 2, 3, 4


class EventpollFileEntry:
    """eventpoll_file_entry (eventpoll.proto): file_entry.epfd."""

    flags, fown, tfd = 2, 3, 4


class EventpollTfdEntry:
    """eventpoll_tfd_entry (eventpoll.proto): a descriptor watched, eventpoll_file_entry.tfd."""

    tfd, events, data = 2, 3, 4


class SignalfdEntry:
    """signalfd_entry (signalfd.proto): file_entry.sgfd."""

    flags, fown, sigmask = 2, 3, 4


class TimerfdEntry:
    """timerfd_entry (timerfd.proto): file_entry.tfd."""

    flags, fown, clockid, ticks, settime_flags, vsec, vnsec, isec, insec = 2, 3, 4, 5, 6, 7, 8, 9, 10


class UnixSkEntry:
    """unix_sk_entry (sk-unix.proto): file_entry.usk."""

    id, ino, type, state, flags, peer, fown, opts, name, shutdown = 1, 2, 3, 4, 5, 8, 9, 10, 11, 12


class SkOptsEntry:
    """sk_opts_entry (sk-opts.proto): unix_sk_entry.opts."""

    so_sndbuf, so_snd_tmo_sec, so_snd_tmo_usec, so_rcv_tmo_sec, so_rcv_tmo_usec = 1, 3, 4, 5, 6
    so_passcred, so_passsec, so_filter = 11, 12, 16


class SkPacketEntry:
    """sk_packet_entry (sk-packet.proto): a message in a socket, in sk-queues.img; its bytes follow."""

    id_for, length, scm = 1, 2, 4


class PagemapHead:
    """pagemap_head (pagemap.proto): the first entry of pagemap-PID.img."""

    pages_id = 1


class PagemapEntry:
    """pagemap_entry (pagemap.proto): the other entries. CRIU 4.1 has a run's length in compat_nr_pages under the name
    nr_pages, 4.2 in nr_pages."""

    vaddr, compat_nr_pages, in_parent, flags, nr_pages = 1, 2, 3, 4, 5
