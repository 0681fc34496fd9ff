"""A stage that works the first time."""

from tasks.stage import Stage

STAGE = Stage(name="steady", version=1, reads=("seed",))


def run(config, inputs, out):
    for step in (1, 2):
        out.progress(step=step, total=2, loss=1.5)
    out.log("steady says hello")
    (out.path / "seed.txt").write_text(str(config.seed))
    return {"seed": config.seed}
