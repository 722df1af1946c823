# SPDX-License-Identifier: Apache-2.0
"""Start of the one file that is sent to a candidate node: the agent itself, or one of those that restore for it."""

from __future__ import annotations

import importlib
import sys

RESTORING = ("direct_agent", "criu_agent")


def main() -> None:
    if sys.argv[1] in RESTORING:
        importlib.import_module("checkpoint.restore." + sys.argv[1]).main()
    else:
        importlib.import_module("probe.node.agent").main(sys.argv[1])


if __name__ == "__main__":
    main()
