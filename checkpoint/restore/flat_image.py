# SPDX-License-Identifier: Apache-2.0
"""Write the flat image of a captured phase beside its other images, for the direct restorer."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint.flat.convert import flatten
from checkpoint.flat.deleted import write_deleted
from checkpoint.flat.image import NAME, FlatImage, encode
from checkpoint.private_file import write_private
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.state.process_state import ProcessState


def write_flat_image(
    job: RestoreJob, state: ProcessState, huge: Sequence[tuple[int, int]], touched: Sequence[int] = ()
) -> FlatImage:
    """Put the flat image of a phase into the folder of its images. Raises NotFlat, ValueError."""
    write_deleted(state)
    flat = flatten(
        state,
        (job.warm_event, job.start_event, job.end_event),
        outputs=job.outputs,
        written=[path for _, path in job.written],
        huge=huge,
        touched=touched,
    )
    write_private(job.images / NAME, encode(flat))
    return flat
