"""Stands for the stage `prompts` in the store, without a model."""

import json

from tasks.stage import Stage

STAGE = Stage(name="prompts", version=1, reads=("seed",))


def run(config, inputs, out):
    (out.path / "results.json").write_text(json.dumps({"seed": config.seed}))
    return {}
