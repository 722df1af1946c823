# SPDX-License-Identifier: Apache-2.0
"""The command that starts the node agent over SSH, whatever shell the user has there.

A few lines of Python, valid for any Python 3: they take the agent's file from the cache or from standard input, and
turn into it. They and the folder's name are sent in base64, of which no shell understands anything; the rest is
between quotes that all of them have.
"""

from __future__ import annotations

import base64
import math

from probe.candidates.agent_file import AgentFile
from probe.node.protocol import SILENCE_SECONDS

_CODE = r"""
import sys, os
# What start-up files printed may lack the end of its line.
before = ["\n"]
def tell(**said):
    import json
    os.write(1, ("".join(before) + json.dumps(said) + "\n").encode("ascii"))
    del before[:]
def refuse(kind, text):
    tell(event="failed", kind=kind, message=text)
    sys.exit(0)
sha, size, silence, root = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "root"
if root and os.geteuid():
    try:
        os.execvp("sudo", ["sudo", "-n", sys.executable, "-I", "-c", LOADER] + sys.argv[1:])
    except OSError:
        refuse("PrivilegeMissing", "there is no sudo, and CRIU needs root")
if sys.version_info < (3, 8):
    refuse("NodeUnfit", "python3 is %d.%d here; 3.8 or newer is needed" % sys.version_info[:2])
try:
    import base64, ctypes, hashlib, mmap, pwd, resource, select, stat, tarfile, time, zlib
except ImportError as error:
    refuse("NodeUnfit", "the python3 here is incomplete: %s" % error)
os.umask(0o077)
try:
    folder = os.fsdecode(base64.b64decode(sys.argv[6])) if len(sys.argv) > 6 else ""
    if not folder:
        folder = os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".cache", "probe-node")
    # Without links: nobody can have it mean another folder once it has been looked at.
    folder = os.path.realpath(os.path.expanduser(folder))
    agents = os.path.join(folder, "agents")
    os.makedirs(agents, mode=0o700, exist_ok=True)
    for path in (folder, agents):
        status = os.stat(path)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            text = "%s belongs to somebody else, or others can write to it; choose another --cache-dir"
            refuse("StorageError", text % path)
    path = os.path.join(agents, sha + ".pyz")
    have = False
    if os.path.exists(path):
        with open(path, "rb") as file:
            have = hashlib.sha256(file.read()).hexdigest() == sha
    tell(event="agent", have=have)
    if not have:
        data = b""
        while len(data) < size:
            if not select.select([0], [], [], silence)[0]:
                sys.exit(3)
            piece = os.read(0, min(size - len(data), 1 << 16))
            if not piece:
                sys.exit(3)
            data += piece
        if hashlib.sha256(data).hexdigest() != sha:
            refuse("NodeUnreachable", "the agent arrived damaged")
        for name in os.listdir(agents):
            # Parts that were left, and agents of versions that nobody uses any more.
            old = os.path.join(agents, name)
            try:
                if os.stat(old).st_mtime < time.time() - 30 * 86400:
                    os.unlink(old)
            except OSError:
                pass
        part = "%s.%d" % (path, os.getpid())
        try:
            with open(part, "wb") as file:
                file.write(data)
            os.replace(part, path)
        except OSError:
            if os.path.exists(part):
                os.unlink(part)
            raise
    os.utime(path)
    os.execv(sys.executable, [sys.executable, "-I", path, folder])
except (OSError, KeyError) as error:
    refuse("StorageError", "the agent cannot be stored: %s; choose another --cache-dir" % error)
"""


_LOADER = "import sys,base64;exec(base64.b64decode(sys.argv[1]))"


def start_command(agent: AgentFile, cache_dir: str, as_root: bool, silence: float = SILENCE_SECONDS) -> str:
    """The command line for `agent` with its cache in `cache_dir` ("": the default).

    It answers with one line, {"event": "agent", "have": bool}; where it has not, the agent's bytes are to be sent,
    never `silence` seconds without any. What cannot be is answered with {"event": "failed", "kind", "message"}.
    `as_root`: by `sudo -n`, where need be.
    """
    words = [_base64(_CODE.replace("LOADER", repr(_LOADER))), agent.sha256, len(agent.data), math.ceil(silence)]
    words += ["root" if as_root else "user", _base64(cache_dir)]
    return f"exec python3 -I -c '{_LOADER}' {' '.join(map(str, words))}".rstrip()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()
