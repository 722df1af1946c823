# SPDX-License-Identifier: Apache-2.0
"""The `probe` command, and `python -m probe`: signals are caught before anything large is loaded."""

from __future__ import annotations

import sys

from probe.signals import INTERRUPTED, leave_as_commands_do


def main() -> None:
    """Entry point of the command."""
    leave_as_commands_do()
    try:
        from probe.cli.main import main as command

        command()
    except KeyboardInterrupt:
        # While the command itself was loaded: it has not begun.
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
