"""What every step must have been: the rows that were meant, and a finite loss.

The step hands back a checksum of each row that its loss has read, on the device, and the loop compares it with the
checksum that was stored beside the row when it was packed. A buffer that was overwritten, a row read twice and a
flipped token all show at the step where they happen, where a loss curve would only look a little worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from model.checksum import mismatches
from tasks.stage import InputError
from tasks.training.loader import Batch, RowSet

NAMED = 5  # rows listed in a message; the rest is counted


class WrongRows(InputError):
    """The device trained on other rows than those of the shards."""


class NotFinite(InputError):
    """The loss is NaN or infinite."""


def check(batch: Batch, metrics: Mapping[str, Any], rows: RowSet, last_saved: int | None) -> None:
    """Raise WrongRows or NotFinite for a step; waits for the step to have run.

    Neither is retried: the same rows would be read again, the same numbers computed.
    """
    wrong = mismatches(batch.sums, np.asarray(metrics["row_checksums"]))
    if len(wrong):
        names = [rows.name(int(batch.indices[tuple(place)])) for place in wrong[:NAMED]]
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise WrongRows(
            f"Step {batch.step} trained on other tokens than its shards hold, in {len(wrong)} of {batch.sums.size} "
            f"rows: {', '.join(names)}{more}. It was not saved ({_kept(last_saved)}). Verify the shards "
            "with 'python -m tasks.store verify'; if they are whole, memory or the loader is at fault."
        )
    loss = float(metrics["loss"])
    if not math.isfinite(loss):
        raise NotFinite(
            f"The loss of step {batch.step} is {loss} ({_kept(last_saved)}, still finite). Lower the learning rates or "
            "compute in float32: the same command would end here again."
        )


def _kept(last_saved: int | None) -> str:
    return "there is no checkpoint yet" if last_saved is None else f"the last checkpoint is of step {last_saved}"
