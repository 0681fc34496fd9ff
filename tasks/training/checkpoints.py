"""Checkpoints of a run: saved while training goes on, believed only when they validate (`restoring`).

* Saving is asynchronous: `save` returns when the state has been copied off the device; Orbax, hashing and storing
  go on in a thread. Until the store's marker is written, last, there is no checkpoint.
* A kill costs at most `every_steps` steps (of 1: 2) while saves succeed: one begins every half of them, and training
  waits for one that is not complete when the next is due. A save that hangs holds it up once, for HOLD_SECONDS.
* The newest few are kept, and the best by val bpb of those saved at a step that was evaluated.
* A save that fails (full disk, a bucket that refuses) is shown and retried after growing pauses. It ends the run
  only once the last good checkpoint is older than `max_failure_minutes`.

Orbax writes to the local disk, and the store mirrors the directory to the root (on a local root by hard links).
Orbax can write to gs:// itself, and fast: 16 MB to fake-gcs-server on loopback (Orbax 0.12.8, TensorStore 0.1.86)
blocked training for 0.01 to 0.03 s and took 0.1 to 0.7 s in all, and a server that came back after 5 s was waited out
in 11 s. But with the server gone for good `wait_until_finished` blocked for 899 s; a copied tree with the commit
marker there and data missing was listed as the newest step; and nothing it restores can be checked against a hash
beforehand. The detour costs one more read of the files, in the background: 0.5 processor seconds for the 12 MB of the
rehearsal's model and 19 for the 3.1 GB of d12, Orbax included (tests/benchmarks/checkpoint.py). Of several hosts
the first one alone saves and restores, whole arrays (`shared_checkpoints`).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import orbax.checkpoint as ocp

from model.weights import flatten
from tasks.store.directories import Mirrored
from tasks.store.lease import LeaseLost
from tasks.store.roots import StoreUnavailable
from tasks.training import restoring
from tasks.training.checkpoint_manifest import CheckpointManifest, Position, checksums, describe
from tasks.training.restoring import FOLDER, RECORDS, STATE, Store

FILE_BYTES = 24 * 2**20  # about, of one file of arrays: several are hashed and uploaded at a time, each in one request
HOLD_SECONDS = 60.0  # that training waits for a save when the next one is due
FIRST_RETRY_SECONDS = 5.0  # pause after a failed save, doubled after each further one
LONGEST_RETRY_SECONDS = 300.0


class Settings(Protocol):
    """The fields of `conf.schema.Checkpoint` that are used here."""

    @property
    def every_steps(self) -> int: ...
    @property
    def every_minutes(self) -> float: ...
    @property
    def keep(self) -> int: ...
    @property
    def max_failure_minutes(self) -> float: ...


class SavesFailing(StoreUnavailable):
    """No checkpoint could be saved for longer than is allowed."""


class Checkpoints:
    """The checkpoints of one run, in its workspace and in the store."""

    def __init__(
        self,
        workspace: Path,
        store: Store,
        settings: Settings,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workspace = workspace
        self._store = store
        self._settings = settings
        self._log = log
        self._clock = clock
        # Random mantissas compress by 8 % and cost twice the CPU time (measured), which training needs.
        alone = restoring.this_process_alone()
        handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=alone)
        self._orbax = ocp.AsyncCheckpointer(handler, multiprocessing_options=alone)
        self._writer: threading.Thread | None = None
        self._last_good = self._last_try = clock()
        self._last_step = -1  # of the last save that was started
        self._held = False  # training has waited in vain for the save that is going on
        self.last_saved: int | None = None  # step of the newest checkpoint that is complete
        self._failures = 0  # in a row
        self._lost: LeaseLost | None = None

    def restore(self, like: Any, records: Path) -> tuple[Any, Position] | None:
        """`restoring.newest` of this run; None when nothing was ever saved."""
        restored = restoring.newest(self._store, like, records, self._log)
        if restored is not None:
            self._last_step = self.last_saved = restored[1].step
        return restored

    @property
    def writing(self) -> bool:
        """Whether a save is still going on."""
        return self._writer is not None and self._writer.is_alive()

    def due(self, step: int) -> bool:
        """Whether a save should start now that `step` steps are done.

        Raises SavesFailing when saves have failed, or hung, for too long, and LeaseLost when another owner has the key.
        """
        now = self._clock()
        if self._lost is not None:
            raise self._lost
        if self._failures or self.writing:
            self._check_age(now)
        if step == 0 or step == self._last_step or (self.writing and (self._held or self._failures)):
            return False
        if self._failures:
            pause = FIRST_RETRY_SECONDS * 2 ** (self._failures - 1)
            return now - self._last_try >= min(pause, LONGEST_RETRY_SECONDS)
        late = now - self._last_try >= 60 * self._settings.every_minutes
        # Half of what a kill may cost: the other half passes while the save is written. A multiple that came by
        # during a save that hung is made up for at once.
        every = max(1, self._settings.every_steps // 2)
        return late or step // every > max(self._last_step, 0) // every

    def save(self, state: Any, position: Position, records: list[Path]) -> None:
        """Start a save. `state` may be donated when this returns; `records` are small files kept with it.

        A failure is logged and remembered, not raised. An earlier save is waited for; one that hangs is left alone, and
        nothing is started beside it.
        """
        self.finish(0 if self._held else HOLD_SECONDS)
        self._held = self.writing
        if self.writing:
            self._log(f"Step {position.step} is not saved: step {self._last_step} is still being written.")
            return
        self._last_step, self._last_try = position.step, self._clock()
        path = self._workspace / FOLDER / f"{position.step:08d}"
        flat = flatten(state)
        try:
            shutil.rmtree(path, ignore_errors=True)
            (path / RECORDS).mkdir(parents=True)
            for record in records:
                shutil.copyfile(record, path / RECORDS / record.name)
            sums = checksums(flat)
            self._orbax.save(path / STATE, args=ocp.args.PyTreeSave(flat, ocdbt_target_data_file_size=FILE_BYTES))
        except Exception as error:  # whatever a disk or Orbax raises must not end hours of training
            self._failed(path, error)
            return
        shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in flat.items()}
        self._writer = threading.Thread(
            target=self._complete,
            args=(path, position, shapes, sums),
            name="checkpoint-writer",
            daemon=True,  # a disk or bucket that hangs must not keep the process alive
        )
        self._writer.start()

    def finish(self, seconds: float) -> bool:
        """Wait for the save that is going on, at most `seconds`; True when the last save asked for is complete."""
        if self._writer is not None:
            self._writer.join(seconds)
        return not self.writing and self._failures == 0

    def _complete(self, path: Path, position: Position, shapes: dict[str, Any], sums: dict[str, jax.Array]) -> None:
        try:
            self._orbax.wait_until_finished()
            manifest = CheckpointManifest(position, describe(shapes, sums))
            self._store.mirror(f"{FOLDER}/{path.name}", manifest.to_dict())
            self._last_good, self._failures, self.last_saved = self._clock(), 0, position.step
            self._prune()
        except LeaseLost as error:
            self._lost = error
        except Exception as error:
            self._failed(path, error)

    def _failed(self, path: Path, error: Exception) -> None:
        self._failures += 1
        shutil.rmtree(path, ignore_errors=True)
        minutes = (self._clock() - self._last_good) / 60
        self._log(
            f"Saving the checkpoint {path.name} failed ({type(error).__name__}: {error}). Training goes on and saves "
            f"are tried again; the last good one is {minutes:.1f} minutes old, the run stops when it is "
            f"{self._settings.max_failure_minutes:g}."
        )

    def _check_age(self, now: float) -> None:
        minutes = (now - self._last_good) / 60
        if minutes > self._settings.max_failure_minutes:
            raise SavesFailing(
                f"No checkpoint could be saved for {minutes:.0f} minutes (checkpoint.max_failure_minutes="
                f"{self._settings.max_failure_minutes:g}): make room on the disk or repair the bucket, then run the "
                "same command to continue from the last good one."
            )

    def _prune(self) -> None:
        """Remove what is neither among the newest nor the best. The store is listed anew each time (maxtext#5260)."""
        saved = self._store.committed(FOLDER)
        newest = sorted(saved, key=lambda item: item.name)[-self._settings.keep :]
        scored = [item for item in saved if _val_bpb(item) is not None]
        best = min(scored, key=_val_bpb, default=None)
        for item in saved:
            if item not in newest and item is not best:
                self._store.remove(item)
                shutil.rmtree(self._workspace / item.name, ignore_errors=True)


def _val_bpb(mirrored: Mirrored) -> Any:
    return mirrored.meta.get("position", {}).get("val_bpb")
