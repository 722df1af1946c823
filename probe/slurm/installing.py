# SPDX-License-Identifier: Apache-2.0
"""Putting the hooks beside slurm.conf. What a site has there already is never changed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from checkpoint.errors import StorageError
from probe.schedulers.usable import write_whole

HOOK_NAME: Final = "probe_hook.lua"
DEFAULT_MAX_AGE: Final = 14
"""Days after which the hooks ignore a table."""

_DAY = 86400


@dataclass(frozen=True)
class Installed:
    """hook: the file with the work in it. script: the one that Slurm loads, None where the site has its own.

    advice: what is left to do, line by line.
    """

    hook: Path
    script: Path | None
    advice: tuple[str, ...]


def install(folder: Path, table: Path, *, client: bool = False, max_age_days: int = DEFAULT_MAX_AGE) -> Installed:
    """Write the hook, and job_submit.lua (cli_filter.lua for a client) if there is none, into `folder`.

    table: file that the hook will read, on a disk of the machine that runs it. Raises StorageError.
    """
    name, setting = ("cli_filter.lua", "CliFilterPlugins") if client else ("job_submit.lua", "JobSubmitPlugins")
    call = "cli_filter, options" if client else "job_submit, job_desc"
    function = "slurm_cli_pre_submit" if client else "slurm_job_submit"
    if not folder.is_dir():
        raise StorageError(f"{folder}: no such folder; name that of slurm.conf with --conf")
    hook, script = folder / HOOK_NAME, folder / name
    text = _template(HOOK_NAME).replace("@TABLE@", _quoted(table)).replace("@MAX_AGE@", str(max_age_days * _DAY))
    write_whole(hook, text)
    ours = _template(name).replace("@HOOK@", _quoted(hook))
    setting_line = f"in slurm.conf: {setting}=lua, then `scontrol reconfigure` or a restart of slurmctld"
    if script.exists() and script.read_text(errors="replace") != ours:
        return Installed(
            hook,
            None,
            (
                f"{script} is the site's own and stays as it is; add to it",
                f'    local loaded, probe_hook = pcall(dofile, "{_quoted(hook)}")',
                f"and in {function}, before it returns,",
                f"    if loaded then pcall(probe_hook.{call}) end",
                setting_line,
            ),
        )
    write_whole(script, ours)
    return Installed(hook, script, (setting_line, f"and regularly: probe slurm export --table {table}"))


def _template(name: str) -> str:
    return files("probe.slurm").joinpath(name).read_text(encoding="utf-8")


def _quoted(path: Path) -> str:
    """Inside a Lua string."""
    return str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
