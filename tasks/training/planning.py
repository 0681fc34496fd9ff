"""From a config section to the plan of a run: what base and SFT do alike before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import jax

from conf.schema import Compute as ComputeConfig
from conf.schema import Hardware
from model.attention import choose
from model.chat_format import SPECIAL_TOKENS
from model.cost import flops_per_token, parameter_counts
from model.recipe import Compute, GPTConfig
from model.step import Training, TrainState
from tasks.stage import InputError
from tasks.store.workspace import Workspace
from tasks.tokenizer import Tokenizer
from tasks.training import batching
from tasks.training.checkpoints import Settings
from tasks.training.history import History
from tasks.training.loader import Loader, RowSet
from tasks.training.loop import Plan
from tasks.training.placement import Placement
from tasks.training.validation import Validation, prompts
from tasks.training.weights_io import save_model

GIB = 2**30


class Section(Protocol):
    """What the config's sections `base` and `sft` have in common."""

    @property
    def device_batch_rows(self) -> int | None: ...
    @property
    def eval_every(self) -> int: ...
    @property
    def eval_tokens(self) -> int: ...
    @property
    def log_every(self) -> int: ...
    @property
    def checkpoint(self) -> Settings: ...


def make_plan(
    section: Section,
    compute_config: ComputeConfig,
    hardware: Hardware,
    *,
    config: GPTConfig,
    training: Training,
    rows: RowSet,
    val_rows: RowSet,
    batch_rows: int,
    seed: int,
    tokenizer: Tokenizer,
    sample_every: int | None,
) -> Plan:
    """The plan of a run of `training.iterations` steps on the devices at hand; nothing is compiled yet.

    Raises ConfigError where mesh, batch and devices do not fit each other, InputError where data and model do not.
    """
    if rows.seq_len != config.seq_len:
        raise InputError(f"The rows hold {rows.seq_len} tokens and the model reads {config.seq_len}: build them again.")
    compute = make_compute(compute_config)
    placement = Placement.choose(config, compute_config.mesh)
    accum, micro_rows = batching.split_batch(
        batch_rows,
        placement.row_shards,
        section.device_batch_rows
        or batching.device_rows_that_fit(
            config,
            compute,
            device_bytes=hardware.hbm_gib * GIB,
            state_bytes=placement.state_bytes(training),
            flash=choose(compute, jax.default_backend()) != "xla",
        ),
    )
    validation = Validation(val_rows, section.eval_tokens, micro_rows, tokenizer.token_bytes, compute, placement)
    return Plan(
        config=config,
        compute=compute,
        training=training,
        steps=training.iterations,
        loader=Loader(rows, seed, accum, micro_rows),
        validation=validation,
        eval_every=section.eval_every,
        placement=placement,
        prompts=prompts(val_rows),
        decode=tokenizer.decode,
        stop_tokens=tuple(tokenizer.special(name) for name in SPECIAL_TOKENS),
        sample_every=sample_every,
        log_every=section.log_every,
        checkpoint=section.checkpoint,
        flops_per_token=flops_per_token(config),
        peak_flops=hardware.peak_flops and hardware.peak_flops * len(jax.devices()),
    )


def make_compute(config: ComputeConfig) -> Compute:
    """The config's choices as the model takes them; Muon's iteration in bfloat16 on accelerators, as nanochat does."""
    return Compute(
        compute_dtype=config.compute_dtype,
        param_dtype=config.param_dtype,
        polar_dtype="float32" if jax.default_backend() == "cpu" else "bfloat16",
        attention=config.attention,
        loss_chunk=config.loss_chunk,
        remat=config.remat,
        layer_loop=config.layer_loop,
    )


def write_results(plan: Plan, state: TrainState, history: History, seconds: float, out: Workspace) -> dict[str, Any]:
    """Write weights, optimizer state, shape, history and samples; returns the metrics of the run."""
    history.write()
    save_model(out.path, state.params, state.opt_state, plan.config)
    tokens = plan.steps * plan.loader.batch_rows * plan.config.seq_len
    flops = tokens * plan.flops_per_token
    return {
        "steps": plan.steps,
        "tokens": tokens,
        "loss": history.last("loss"),
        "val_bpb": history.last("val_bpb"),
        "parameters": parameter_counts(plan.config)["total"],
        "flops": flops,
        "seconds": round(seconds, 1),
        "tokens_per_s": tokens / seconds,
        "mfu": plan.peak_flops and flops / seconds / plan.peak_flops,
        "total_batch_tokens": plan.loader.batch_rows * plan.config.seq_len,
        "grad_accum_steps": plan.loader.grad_accum_steps,
        "micro_batch_rows": plan.loader.micro_rows,
        "devices": len(jax.devices()),
    }


def open_rows(directory: Path) -> tuple[RowSet, RowSet]:
    """The training and validation rows of a shards or conversations artifact; raises InputError for none."""
    splits = {split: RowSet.open(directory, split) for split in ("train", "val")}
    for split, rows in splits.items():
        if not len(rows):
            raise InputError(f"The {split} split holds no rows: bring enough text to fill one row in each split.")
    return splits["train"], splits["val"]
