"""Stage `sft`: fine-tuning of base on packed conversations, by nanochat's rules (chat_sft).

The same loop as base on rows that are padded and never cropped, with a loss on what the assistant says alone. Rates
are base's times `sft.lr_scale` (also scaled with √batch as base's are), without warm-up, falling to 0 over the last
`sft.warmdown_ratio` of the run; Muon's decay is 0. The weights are base's, and with `sft.warm_optimizer` its moments
too; the schedules begin anew. Fills the same files as base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from conf.sizing import rows_in_batch
from model.step import Training, TrainState, optimizer
from tasks import tokenizer as tokenizers
from tasks.stage import InputError, Stage
from tasks.training.distributed import together
from tasks.training.loop import Loop, Plan
from tasks.training.planning import make_plan, open_rows, write_results
from tasks.training.weights_io import OPTIMIZER, load_into, load_model

if TYPE_CHECKING:
    from conf.schema import Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="sft",
    version=1,
    reads=(
        "seed",
        "sft.steps",
        "sft.epochs",
        "sft.total_batch_tokens",
        "sft.warm_optimizer",
        "sft.lr_scale",
        "sft.warmdown_ratio",
        "sft.eval_every",
        "sft.eval_tokens",
        "compute.compute_dtype",
        "compute.param_dtype",
    ),
    runtime=("compute", "hardware", "sft.device_batch_rows", "sft.log_every", "sft.checkpoint"),
    inputs=("base", "conversations", "tokenizer"),
    resumable=True,
    accelerator=True,
    all_hosts=True,
)


def run(config: Config, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Fine-tune; returns loss, val bpb (of what the assistant says), tokens, time and throughput.

    Raises InputError where base, conversations and tokenizer do not belong together.
    """
    with together(out.meeting) as team:
        plan = plan_run(config, inputs)
        finished = Loop(plan, out, team).run(lambda: start(plan, inputs["base"], config.sft.warm_optimizer))
    return write_results(plan, *finished, out) if team.leads else {}


def plan_run(config: Config, inputs: Mapping[str, Artifact]) -> Plan:
    """What will be done, from config and inputs; nothing is compiled yet."""
    tokenizer = tokenizers.load(inputs["tokenizer"].path())
    _, model = load_model(inputs["base"])
    if tokenizer.vocab_size != model.vocab_size:
        raise InputError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and base was trained with {model.vocab_size}: give sft "
            "the tokenizer of its base."
        )
    rows, val_rows = open_rows(inputs["conversations"].path())
    batch_tokens = config.sft.total_batch_tokens or inputs["base"].manifest.metrics["total_batch_tokens"]
    batch_rows = rows_in_batch(batch_tokens, model.seq_len)
    steps = config.sft.steps or max(1, math.ceil(config.sft.epochs * len(rows) / batch_rows))
    return make_plan(
        config.sft,
        config.compute,
        config.hardware,
        config=model,
        training=Training(
            iterations=steps,
            schedule=replace(model.recipe.sft_schedule, warmdown_fraction=config.sft.warmdown_ratio),
            weight_decay=0.0,
            batch_lr_scale=math.sqrt(batch_tokens / model.recipe.horizon.reference_batch_tokens),
            lr_scale=config.sft.lr_scale,
        ),
        rows=rows,
        val_rows=val_rows,
        batch_rows=batch_rows,
        seed=config.seed,
        tokenizer=tokenizer,
        sample_every=None,
    )


def start(plan: Plan, base: Artifact, warm_optimizer: bool) -> TrainState:
    """The state of step 0: base's weights, and its moments or fresh ones."""
    params, _ = load_model(base)
    if warm_optimizer:
        shapes = plan.placement.state_shapes(plan.training)
        opt_state = load_into(base.path(OPTIMIZER), shapes.opt_state)
    else:
        opt_state = optimizer(plan.config, plan.training, plan.compute).init(params)
    return plan.placement.put_state(TrainState(jnp.int32(0), params, opt_state))
