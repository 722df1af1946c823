# SPDX-License-Identifier: Apache-2.0
"""Names of files in a work folder."""

from __future__ import annotations

import os
from pathlib import Path

from probe.contents.captured_files import captured_outputs


def test_outputs_are_named_as_the_kernel_does(tmp_path: Path) -> None:
    """A build finds them among the program's descriptors, also where its folder was given by a link."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    for folder in (real, link, real / "sub" / ".."):
        (real / "sub").mkdir(exist_ok=True)
        for name in captured_outputs(folder):
            file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                assert str(Path(f"/proc/self/fd/{file}").readlink()) == name
            finally:
                os.close(file)
