"""Stands for the stage `report` in the store, without a model."""

from tasks.stage import Stage

STAGE = Stage(name="report", version=1, reads=("name",), inputs=("prompts",))


def run(config, inputs, out):
    (out.path / "report.md").write_text(config.name)
    return {}
