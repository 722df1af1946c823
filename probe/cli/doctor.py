# SPDX-License-Identifier: Apache-2.0
"""`probe doctor`: what building and running probes needs of this machine."""

from __future__ import annotations

import sys

import click

from probe.cli.rows import AS_JSON


@click.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended.")
@AS_JSON
def doctor(fix: bool, as_json: bool) -> None:
    """Check what building and running probes needs."""
    from probe.doctor.diagnosis import run_doctor

    sys.exit(run_doctor(fix=fix, as_json=as_json))
