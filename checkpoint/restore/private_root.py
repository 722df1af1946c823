# SPDX-License-Identifier: Apache-2.0
"""Give a phase a root of its own: the node's files with the probe's on top, all changes kept in memory. Python 3.8."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat

from checkpoint.binary.syscall_names import call_number
from checkpoint.linux import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
)
from checkpoint.private_file import copy_contents

_LOCKED_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
"""In a user namespace a mount keeps those it had."""


_KERNEL = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs",
    "tracefs",
}  # fmt: skip
"""File systems that hold no files of anybody's, and cannot be covered."""


_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2), in this mount namespace only. Raises OSError naming the target."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [x.encode() or None for x in (source, target, kind)]
    if libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, "mounting %s on %s: %s" % (source, target, os.strerror(number)))


def bind(source: str, target: str, read_only: bool = False) -> None:
    """Show the file or folder `source` at the path `target`, in this mount namespace only."""
    try:
        mount(source, target, "", MS_BIND)
    except OSError:
        # In a user namespace what lies below a mount cannot be left out.
        mount(source, target, "", MS_BIND | MS_REC)
    if read_only:
        kept = os.statvfs(target).f_flag & _LOCKED_FLAGS
        mount("", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def mount_points() -> list[tuple[str, str]]:
    """(path, kind of file system) of all mounts, parents first, each path once."""
    with open("/proc/self/mountinfo") as file:
        rows = [line.split(" - ") for line in file]
    found = {unescaped(row[0].split()[4]): row[1].split()[0] for row in rows}
    return sorted(found.items())


def unescaped(text: str) -> str:
    """A path as mountinfo writes it: blanks and backslashes are three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def overlay(point: str, target: str, layer: str) -> None:
    """Show the folder `point` at `target`, so that changes go to `layer`. Raises OSError."""
    if not os.path.isdir(point):
        raise NotADirectoryError(point)
    upper, work = layer + "u", layer + "w"
    os.mkdir(upper)
    os.mkdir(work)
    # The overlay's own root takes its owner and permission bits from the upper layer.
    status = os.stat(point)
    # It may belong to somebody who does not exist in our user namespace.
    with contextlib.suppress(OSError):
        os.chown(upper, status.st_uid, status.st_gid)
    os.chmod(upper, stat.S_IMODE(status.st_mode))
    paths = [re.sub(r"([\\:,])", r"\\\1", path) for path in (point, upper, work)]
    mount("overlay", target, "overlay", 0, "lowerdir=%s,upperdir=%s,workdir=%s" % tuple(paths))


def cover(point: str, target: str, layer: str) -> list[str]:
    """Show the mount at `point` at `target` too, read-only or so that changes go to `layer`. Returns what is covered.

    In a user namespace a mount with others below it takes no overlay: then its folders get one each.
    """
    try:
        overlay(point, target, layer)
        return [target]
    except OSError:
        bind(point, target, read_only=True)
    covered = []
    if os.path.isdir(point):
        device = os.stat(point).st_dev
        for number, name in enumerate(sorted(os.listdir(point))):
            path = os.path.join(point, name)
            if os.path.isdir(path) and not os.path.islink(path) and os.stat(path).st_dev == device:
                with contextlib.suppress(OSError):
                    overlay(path, os.path.join(target, name), "%s-%d" % (layer, number))
                    covered.append(os.path.join(target, name))
    return covered


def enter_private_root(scratch: str, folders: list[str]) -> set[int]:
    """Make a root that looks like this node's and keeps all changes to itself, and enter it.

    Every mount but the kernel's own is covered by an overlay whose upper layer is in memory: paths can be added that
    this node does not have, and whatever a phase creates, changes or removes is gone with the mount namespace.
    An ordinary user's overlay takes changes only below folders of his own: `folders` get one each.
    `scratch` stays as it is, and holds the old root in `old`. Returns the device numbers of what is covered.
    """
    layers, root = os.path.join(scratch, "layers"), os.path.join(scratch, "root")
    for folder in (layers, root, os.path.join(scratch, "old")):
        os.makedirs(folder, exist_ok=True)
    points = mount_points()
    mount("tmpfs", layers, "tmpfs", 0, "mode=0700,size=256m")
    covered: set[int] = set()
    for number, (point, kind) in enumerate(points):
        target = root + point.rstrip("/")
        if not os.path.exists(target):
            continue
        if kind in _KERNEL:
            bind(point, target)
        else:
            covered.update(os.stat(path).st_dev for path in cover(point, target, os.path.join(layers, str(number))))
    for number, folder in enumerate(folders if os.geteuid() else ()):
        with contextlib.suppress(OSError):
            overlay(folder, root + folder, os.path.join(layers, "f%d" % number))
            covered.add(os.stat(root + folder).st_dev)
    bind(scratch, root + scratch)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(call_number("pivot_root"), root.encode(), (root + scratch + "/old").encode()):
        number = ctypes.get_errno()
        raise OSError(number, "pivot_root: %s" % os.strerror(number))
    os.chdir("/")
    return covered


def make_room(folders: list[tuple[str, int | None]], files: list[str], covered: set[int]) -> None:
    """Create what is missing of these paths, inside the private root, and give the folders their permission bits."""
    for folder, mode in folders:
        _make_folders(folder)
        if mode is not None and os.stat(folder).st_dev in covered:
            os.chmod(folder, mode)
    for path in files:
        if not os.path.exists(path):
            _make_folders(os.path.dirname(path))
            with open(path, "w"):
                pass


def _make_folders(folder: str) -> None:
    """Make a folder and those above it. An empty one covers what this user may not enter, such as another's home."""
    try:
        os.makedirs(folder, exist_ok=True)
    except PermissionError:
        closed, missing = os.path.dirname(folder), folder
        while not os.path.isdir(closed):
            closed, missing = os.path.dirname(closed), closed
        if _may_enter(missing):
            # There the phase may want other files.
            raise
        mount("tmpfs", closed, "tmpfs", 0, "mode=0700,size=1m")
        os.makedirs(folder, exist_ok=True)


def _may_enter(path: str) -> bool:
    """Whether this user may look for `path` in its folder. Of an overlay the permission bits do not tell."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True


def show_copy(source: str, target: str, spare: str, covered: set[int]) -> None:
    """Show a copy of the file `source` at `target`, which the phase may write; `spare` is a path for it on disk."""
    folder = os.path.dirname(os.path.realpath(target))
    room = os.statvfs(folder)
    # As a file of the overlay it can be renamed and removed, which a mount cannot.
    if os.stat(folder).st_dev in covered and os.stat(source).st_size < room.f_bavail * room.f_frsize // 4:
        _copy(source, target)
    else:
        _copy(source, spare)
        bind(spare, target)


def _copy(source: str, target: str) -> None:
    """As shutil.copy, with the holes of the source."""
    with open(source, "rb") as contents, open(target, "wb") as out:
        copy_contents(contents, out)
    shutil.copymode(source, target)


def close_own_devices() -> None:
    """Take the devices in /dev away in this mount namespace, but for what keeps nothing: opening some does something by
    itself, whatever for. Raises OSError."""
    if not os.path.ismount("/dev"):
        mount("/dev", "/dev", "", MS_BIND | MS_REC)
    for path in _HARMLESS_DEVICES:
        if os.path.exists(path):
            bind(path, path)
    kept = os.statvfs("/dev").f_flag & (_LOCKED_FLAGS | MS_RDONLY)
    mount("", "/dev", "", MS_BIND | MS_REMOUNT | MS_NODEV | kept)


def close_devices(old: str, kept: str) -> None:
    """Take devices and the kernel's own settings away from this root, but for what keeps nothing and for mounts below
    `kept`. `old` is where the node's root is. Raises OSError."""
    for point, kind in mount_points():
        if point == kept or point.startswith(kept + "/"):
            continue
        flags = os.statvfs(point).f_flag & (_LOCKED_FLAGS | MS_RDONLY) | MS_NODEV
        try:
            mount("", point, "", MS_BIND | MS_REMOUNT | flags | (MS_RDONLY if kind in _KERNEL else 0))
        except OSError as error:
            # Another mount lies on top of it.
            if error.errno != errno.EINVAL:
                raise
    for path in _HARMLESS_DEVICES:
        if os.path.exists(old + path) and os.path.exists(path):
            bind(old + path, path)
