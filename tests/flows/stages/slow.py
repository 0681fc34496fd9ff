"""A stage that works until it is asked to stop, then saves what it has."""

from tasks.stage import Stage

STAGE = Stage(name="slow", version=1, resumable=True)


def run(config, inputs, out):
    out.log("working" if not out.finished() else "continuing")
    if not out.finished():
        out.stop.wait(120)
        (out.path / "half.txt").write_text("half")
        out.publish("half.txt")
        out.stop.check()
    return {}
