# SPDX-License-Identifier: Apache-2.0
"""The command that starts the node agent over SSH, whatever shell the user has there.

A few lines of Python, valid for any Python 3: they take the agent's file from the cache or from standard input, and
turn into it. They are sent in base64, of which no shell understands anything.
"""

from __future__ import annotations

import base64
import shlex

from probe.candidates.agent_file import AgentFile

_CODE = r"""
import sys, os
def tell(**said):
    import json
    os.write(1, (json.dumps(said) + "\n").encode("ascii"))
def refuse(kind, text):
    tell(event="failed", kind=kind, message=text)
    sys.exit(0)
sha, size, folder, root = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "root"
if root and os.geteuid():
    try:
        os.execvp("sudo", ["sudo", "-n", sys.executable, "-I", "-c", sys.argv[5]] + sys.argv[1:])
    except OSError:
        refuse("PrivilegeMissing", "there is no sudo, and CRIU needs root")
if sys.version_info < (3, 8):
    refuse("NodeUnfit", "python3 is %d.%d here; 3.8 or newer is needed" % sys.version_info[:2])
try:
    import ctypes, hashlib, pwd, stat, zlib
except ImportError as error:
    refuse("NodeUnfit", "the python3 here is incomplete: %s" % error)
os.umask(0o077)
try:
    if not folder:
        folder = os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".cache", "probe-node")
    folder = os.path.abspath(os.path.expanduser(folder))
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
            piece = os.read(0, min(size - len(data), 1 << 16))
            if not piece:
                sys.exit(3)
            data += piece
        if hashlib.sha256(data).hexdigest() != sha:
            refuse("NodeUnreachable", "the agent arrived damaged")
        part = "%s.%d" % (path, os.getpid())
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
    os.execv(sys.executable, [sys.executable, "-I", path, folder])
except (OSError, KeyError) as error:
    refuse("StorageError", "the agent cannot be stored: %s; choose another --cache-dir" % error)
"""


def start_command(agent: AgentFile, cache_dir: str, as_root: bool) -> str:
    """The command line for `agent` with its cache in `cache_dir` ("": the default).

    It answers with one line, {"event": "agent", "have": bool}; where it has not, the agent's bytes are to be sent. What
    cannot be is answered with {"event": "failed", "kind", "message"}. `as_root`: by `sudo -n`, where need be.
    """
    code = base64.b64encode(_CODE.encode()).decode()
    loader = f'exec(__import__("base64").b64decode("{code}"))'
    words = [agent.sha256, str(len(agent.data)), cache_dir, "root" if as_root else "user", loader]
    return " ".join(["exec", "python3", "-I", "-c", *(shlex.quote(word) for word in [loader, *words])])
