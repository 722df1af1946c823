# SPDX-License-Identifier: Apache-2.0
"""`python -m probe` is the `probe` command."""

from probe.cli.main import main

main()
