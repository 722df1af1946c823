# SPDX-License-Identifier: Apache-2.0
"""Start of what emulates on a node: the command, valid in any shell, and the program that it takes from its input.

Unlike the agent of probes the program is not kept on the node: it is run from memory.
"""

from __future__ import annotations

import base64
import functools
import math

from probe.candidates.agent_file import AgentFile, archive_of

EMULATION_MODULES = (
    "checkpoint/__init__.py", "checkpoint/errors.py", "checkpoint/linux.py", "checkpoint/strict_json.py",
    "probe/emulation/__init__.py", "probe/emulation/elsewhere/__init__.py", "probe/emulation/elsewhere/node_part.py",
    "probe/emulation/load.py",
    "probe/emulation/room.py", "probe/node/__init__.py", "probe/node/facts.py", "probe/node/machine_lock.py",
    "probe/node/protocol.py",
)  # fmt: skip
"""Everything that runs on a node for an emulation: the standard library of Python 3.8 is all that these need."""

MAIN = b"""
import sys
from probe.emulation.elsewhere.node_part import main
main(float(sys.argv[1]))
"""

_CODE = r"""
import sys, os
def refuse(text):
    import json
    os.write(1, ("\n" + json.dumps(dict(event="failed", kind="NodeUnfit", message=text)) + "\n").encode("ascii"))
    sys.exit(0)
if sys.version_info < (3, 8):
    refuse("python3 is %d.%d here; 3.8 or newer is needed" % sys.version_info[:2])
try:
    import hashlib, runpy, select, zlib
    program = os.memfd_create("emulation")
except (ImportError, AttributeError, OSError) as error:
    refuse("the python3 or Linux here is incomplete: %s" % error)
os.umask(0o077)
left, silence, digest = int(sys.argv[2]), float(sys.argv[3]), hashlib.sha256()
while left:
    if not select.select([0], [], [], silence)[0]:
        sys.exit(3)
    piece = os.read(0, min(left, 1 << 16))
    if not piece:
        sys.exit(3)
    os.write(program, piece)
    digest.update(piece)
    left -= len(piece)
if digest.hexdigest() != sys.argv[4]:
    refuse("what emulates here arrived damaged")
# What start-up files printed may lack the end of its line.
os.write(1, b"\n")
sys.argv = ["emulation", sys.argv[3]]
runpy.run_path("/proc/self/fd/%d" % program, run_name="__main__")
"""

_LOADER = "import sys,base64;exec(base64.b64decode(sys.argv[1]))"


@functools.cache
def emulation_file() -> AgentFile:
    """What is sent; the same bytes every time."""
    return archive_of(EMULATION_MODULES, MAIN, {})


def start_command(sent: AgentFile, silence: float) -> str:
    """The command line for `sent`, whose bytes are to follow on standard input, never `silence` seconds without any."""
    words = [base64.b64encode(_CODE.encode()).decode(), len(sent.data), math.ceil(silence), sent.sha256]
    return f"exec python3 -I -c '{_LOADER}' {' '.join(map(str, words))}"
