"""The training loop of base and SFT: one dispatch a step, nothing believed before it was checked.

* The device is never waited for between steps: while step s runs, the host checks step s − 1 (`guard`) and has read
  the rows of s + 1. Everything of a step is checked before its state is evaluated, saved or handed on.
* After `step` steps come, where due: val bpb, samples, a checkpoint, and whether to stop. A resumed run does what
  of these its checkpoint was saved without, so that it records the same as one that was never interrupted.
* Asked to stop, it ends the step, commits a checkpoint and raises Preempted.
* Several processes (`distributed`) run this same loop; what one of them alone knows they ask each other.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import jax

from model.generate import Engine
from model.recipe import Compute, GPTConfig
from model.step import Training, TrainState, make_train_step
from tasks.stage import Preempted
from tasks.store.workspace import Workspace
from tasks.training import guard
from tasks.training.checkpoint_manifest import Position
from tasks.training.checkpoints import Settings
from tasks.training.distributed import Alone, Team
from tasks.training.history import History
from tasks.training.loader import Batch, Loader
from tasks.training.placement import Placement
from tasks.training.shared_checkpoints import open_checkpoints
from tasks.training.validation import SAMPLE_TOKENS, Validation

FINISH_SECONDS = 600.0  # waited for a checkpoint that is being written when the run stops or ends


@dataclass(frozen=True)
class Plan:
    """What one run does. Everything above the line decides its result, what is below only how it is watched."""

    config: GPTConfig
    compute: Compute
    training: Training
    steps: int
    loader: Loader
    validation: Validation
    eval_every: int
    # ----
    placement: Placement
    prompts: list[list[int]]
    decode: Callable[[list[int]], str]
    stop_tokens: tuple[int, ...]
    sample_every: int | None  # None: at the end only
    log_every: int
    checkpoint: Settings
    flops_per_token: float
    peak_flops: float | None  # of all devices together; None: no MFU


class Pace:
    """Seconds a step takes, without what happens between steps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None

    def pause(self) -> None:
        """The time until the next `lap` is not a step's."""
        self._since = None

    def lap(self) -> float | None:
        """Seconds since the last lap; None after a pause."""
        before, self._since = self._since, self._clock()
        return None if before is None else self._since - before


class Loop:
    """One attempt at a run."""

    def __init__(
        self, plan: Plan, out: Workspace, team: Alone | Team | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan, self._out, self._clock = plan, out, clock
        self._team = team or Alone()
        self._stop = self._team.shared_stop(out.stop)
        self._started = clock()
        self._pace = Pace(clock)
        self._checkpoints = open_checkpoints(self._team, out, plan.checkpoint, clock)

    def run(self, start: Callable[[], TrainState]) -> tuple[TrainState, History, float]:
        """Train to the last step; returns the final state, the record and the seconds spent over all attempts.

        Of several processes, only the first one gets the arrays of the state.

        `start` makes the state of step 0, on its devices, and is called only if there is no checkpoint. Raises
        Preempted after saving, WrongRows and NotFinite for a step that must not count, SavesFailing, InputError.
        """
        plan = self._plan
        restored = self._checkpoints.restore(plan.placement.state_shapes(plan.training), self._out.path)
        self._history = History(self._out.path)
        if restored is None:
            state, position = start(), Position(0, 0, 0, 0.0)
        else:
            state, position = restored
            self._out.log(f"Continuing from step {position.step} of {plan.steps}.")
        self._spent_before = position.wall_seconds
        train_step = make_train_step(plan.config, plan.compute, plan.training, plan.placement.mesh)

        self._between_steps(state, position.step)
        unchecked: tuple[Batch, dict[str, Any]] | None = None
        with closing(plan.loader.batches(position.step, plan.steps)) as batches:
            for batch in batches:
                asked = self._ask(batch.step + 1)
                state, metrics = train_step(state, plan.placement.put_rows(batch.rows))
                if unchecked is not None:
                    self._check(*unchecked)
                elif batch.step == position.step:
                    gc.collect()
                    gc.freeze()  # what tracing left behind would be walked by each later collection
                unchecked = (batch, metrics)
                if self._due(batch.step + 1, asked):
                    self._check(*unchecked)
                    unchecked = None
                    self._between_steps(state, batch.step + 1)
        self._checkpoints.finish(FINISH_SECONDS)
        whole, _ = self._team.on_first(state, None)
        return whole, self._history, self._seconds()

    def _check(self, batch: Batch, metrics: dict[str, Any]) -> None:
        """Believe a step, or raise; record it. Waits for the device to have finished it."""
        plan, metrics = self._plan, jax.device_get(metrics)
        guard.check(batch, metrics, plan.loader.rows, self._checkpoints.last_saved)
        seconds, step = self._pace.lap(), batch.step + 1
        step_tokens = batch.rows.size - batch.sums.size  # a row is one token longer than what it trains
        tokens_per_s = None if seconds is None else step_tokens / seconds
        mfu = None
        if tokens_per_s is not None and plan.peak_flops is not None:
            mfu = tokens_per_s * plan.flops_per_token / plan.peak_flops
        self._history.add(
            step,
            tokens=step * step_tokens,
            loss=float(metrics["loss"]),
            lr_mult=float(metrics["lr_mult"]),
            grad_norm=float(metrics["grad_norm"]),
            tokens_per_s=tokens_per_s,
            mfu=mfu,
        )
        if step % plan.log_every == 0 or step == plan.steps:
            self._out.progress(
                step=step,
                total=plan.steps,
                loss=float(metrics["loss"]),
                tokens_per_s=tokens_per_s,
                mfu=mfu,
                eta=None if seconds is None else duration((plan.steps - step) * seconds),
            )

    def _ask(self, step: int) -> Callable[[], list[bool]]:
        """Whether to stop and whether to save after `step` steps, for any process."""
        return self._team.ask(lambda: self._out.stop.requested, lambda: self._checkpoints.due(step))

    def _due(self, step: int, asked: Callable[[], list[bool]]) -> bool:
        plan = self._plan
        return step == plan.steps or step % plan.eval_every == 0 or self._sample_due(step) or any(asked())

    def _between_steps(self, state: TrainState, step: int) -> None:
        """What is due after `step` checked steps."""
        plan, last = self._plan, step == self._plan.steps
        if (last or step % plan.eval_every == 0) and self._history.get(step, "val_bpb") is None:
            val_bpb = plan.validation.bits_per_byte(state.params, self._stop)
            self._history.add(step, val_bpb=val_bpb)
            self._out.progress(step=step, total=plan.steps, val_bpb=val_bpb)
        if self._sample_due(step) and not self._history.sampled(step):
            self._sample(state, step)
        self._team.wait(f"step {step}")
        stop, save = self._ask(step)()
        if save and not last:
            self._save(state, step)
        if stop:
            self._leave(state, step)
        self._pace.pause()

    def _sample_due(self, step: int) -> bool:
        every = self._plan.sample_every
        return step == self._plan.steps or (every is not None and step > 0 and step % every == 0)

    def _sample(self, state: TrainState, step: int) -> None:
        plan = self._plan
        params, mesh = self._team.on_first(state.params, plan.placement.mesh)
        if not self._team.leads:
            return
        engine = Engine(params, plan.config, plan.compute, mesh)
        try:
            written = engine.generate(
                plan.prompts, max_new_tokens=SAMPLE_TOKENS, stop=plan.stop_tokens, between=self._out.stop.check
            )
        except Preempted:
            return  # saved and left by the caller; the samples are written when the run continues
        texts = [
            {"prompt": plan.decode(prompt), "text": plan.decode(completion.tokens)}
            for prompt, (completion,) in zip(plan.prompts, written, strict=True)
        ]
        self._history.add_samples(step, texts)

    def _save(self, state: TrainState, step: int) -> None:
        rows = self._plan.loader.batch_rows * step
        position = Position(
            step=step,
            rows=rows,
            tokens=rows * self._plan.loader.rows.seq_len,
            wall_seconds=self._seconds(),
            val_bpb=self._history.get(step, "val_bpb"),
        )
        self._checkpoints.save(state, position, self._history.write())

    def _leave(self, state: TrainState, step: int) -> None:
        """Commit a checkpoint of this step, unless there is one, and raise Preempted."""
        self._checkpoints.finish(FINISH_SECONDS)
        if step > 0 and self._checkpoints.last_saved != step:
            self._save(state, step)
            self._checkpoints.finish(FINISH_SECONDS)
        kept = self._checkpoints.last_saved or 0
        self._out.log(f"Stopped after step {step}; the same command continues from step {kept}.")
        self._stop.check()

    def _seconds(self) -> float:
        return self._spent_before + self._clock() - self._started


def duration(seconds: float) -> str:
    """`4 min`, `1 h 20 min`: how long something takes, for people."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
