"""Stage `base`: pretraining on packed rows, sized by depth.

Fills weights.safetensors, optimizer.safetensors, model.json, history.jsonl and samples.json. The result is a function
of the config, the shards and the seed alone: a run that was killed and continued ends with the same bits as one
that was not, on the same devices; on others, with losses equal to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conf.sizing import rows_in_batch, sized
from model.step import Training, TrainState, init_state
from tasks import tokenizer as tokenizers
from tasks.stage import Stage
from tasks.training.distributed import together
from tasks.training.loader import check_enough_rows
from tasks.training.loop import Loop, Plan
from tasks.training.planning import make_plan, open_rows, write_results

if TYPE_CHECKING:
    from conf.schema import Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="base",
    version=1,
    reads=(
        "seed",
        "recipe",
        "scale",
        "data.allow_repeat",
        "base.steps",
        "base.total_batch_tokens",
        "base.eval_every",
        "base.eval_tokens",
        "base.sample_every",
        "compute.compute_dtype",
        "compute.param_dtype",
    ),
    runtime=("compute", "hardware", "base.device_batch_rows", "base.log_every", "base.checkpoint"),
    inputs=("shards", "tokenizer"),
    resumable=True,
    accelerator=True,
    all_hosts=True,
)


def run(config: Config, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Pretrain; returns loss, val bpb, tokens, time and throughput.

    Raises InputError where the rows do not last, ConfigError where batch, mesh and devices do not fit.
    """
    with together(out.meeting) as team:
        plan = plan_run(config, inputs)
        finished = Loop(plan, out, team).run(lambda: start(plan, config.seed))
    return write_results(plan, *finished, out) if team.leads else {}


def start(plan: Plan, seed: int) -> TrainState:
    """The state of step 0: random weights and an empty optimizer."""
    return plan.placement.create(lambda: init_state(plan.config, plan.training, seed), plan.training)


def plan_run(config: Config, inputs: Mapping[str, Artifact]) -> Plan:
    """What will be done, from config and inputs; nothing is compiled yet."""
    tokenizer = tokenizers.load(inputs["tokenizer"].path())
    sizing = sized(config, tokenizer.vocab_size)
    batch_rows = rows_in_batch(sizing.total_batch_tokens, config.scale.seq_len)
    rows, val_rows = open_rows(inputs["shards"].path())
    check_enough_rows(
        rows,
        sizing.iterations * batch_rows,
        config.data.allow_repeat,
        remedy="Bring more text, lower base.steps or scale.ratio, or set data.allow_repeat=true to see rows again.",
    )
    return make_plan(
        config.base,
        config.compute,
        config.hardware,
        config=sizing.config,
        training=Training.base(config.recipe, sizing),
        rows=rows,
        val_rows=val_rows,
        batch_rows=batch_rows,
        seed=config.seed,
        tokenizer=tokenizer,
        sample_every=config.base.sample_every,
    )
