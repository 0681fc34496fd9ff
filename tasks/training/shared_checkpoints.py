"""Checkpoints of a job of several processes: the first one keeps them, whole, exactly as a single process would.

To save, the state is gathered on the first process; to restore, that one reads, checks and decides, and sends every
array to the others. Orbax could let each process write its part instead, but then no process could check the whole
against its hashes, a checkpoint would need a filesystem that all hosts share, and a run could not continue on another
number of hosts from what one of them lost. The price, at the sizes of this project: the first host's memory holds the
state once, and a save pauses training for as long as the state takes from the devices to the host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from tasks.training.checkpoint_manifest import Position
from tasks.training.checkpoints import Checkpoints, Settings
from tasks.training.distributed import Alone, Team
from tasks.training.history import HISTORY, SAMPLES


class SharedCheckpoints:
    """`Checkpoints` of a team. Every process calls `restore`, `save` and `finish` in the same places."""

    def __init__(self, team: Team, kept: Checkpoints | None) -> None:
        """`kept`: the checkpoints, in the process that leads."""
        self._team, self._kept = team, kept
        self._begun = self._finished = 0
        self.last_saved: int | None = None  # as all processes knew it after the last `restore` or `finish`

    def restore(self, like: Any, records: Path) -> tuple[Any, Position] | None:
        """As in `Checkpoints`, in every process."""
        wanted, message = jax.tree.leaves(like), b"null"
        whole: list[Any] = [None] * len(wanted)
        if self._kept is not None:
            on_host = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
            if restored := self._kept.restore(on_host, records):
                whole = jax.tree.leaves(restored[0])
                texts = {name: (records / name).read_text() for name in (HISTORY, SAMPLES) if (records / name).exists()}
                message = json.dumps({"position": asdict(restored[1]), "records": texts}).encode()
        self._team.wait("the restored checkpoint")
        told = json.loads(self._team.tell(message))
        if told is None:
            return None
        for name, text in told["records"].items():
            (records / name).write_text(text)
        position = Position(**told["position"])
        self.last_saved = position.step
        placed = [self._team.place(*pair) for pair in zip(whole, wanted, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(like), placed), position

    def due(self, step: int) -> bool:
        """As in `Checkpoints`; only the process that leads wishes."""
        return self._kept is not None and self._kept.due(step)

    def save(self, state: Any, position: Position, records: list[Path]) -> None:
        """As in `Checkpoints`. While the first process waits for an earlier save, the others do, and not in a step."""
        whole, _ = self._team.on_first(state, None)
        if self._kept is not None:
            self._kept.save(whole, position, records)
        self._begun += 1
        self._team.wait(f"the start of save {self._begun}")

    def finish(self, seconds: float) -> bool:
        """As in `Checkpoints`: all wait for the one that writes."""
        done = self._kept is None or self._kept.finish(seconds)
        self._finished += 1
        self._team.wait(f"the end of save {self._finished}")
        saved = json.dumps(self._kept.last_saved if self._kept else None).encode()
        self.last_saved = json.loads(self._team.tell(saved))
        return done


def open_checkpoints(
    team: Alone | Team, out: Any, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> Checkpoints | SharedCheckpoints:
    """The checkpoints of this run, kept in `out` by the process that leads."""
    kept = Checkpoints(out.path, out.directories, settings, out.log, clock) if team.leads else None
    if isinstance(team, Team):
        return SharedCheckpoints(team, kept)
    assert kept is not None
    return kept
