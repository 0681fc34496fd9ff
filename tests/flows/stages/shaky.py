"""A stage that is preempted the first time and crashes the second; the third attempt works."""

from pathlib import Path

from tasks.stage import Preempted, Stage

STAGE = Stage(name="shaky", version=1, reads=("seed",), runtime=("report",), inputs=("steady",))


def run(config, inputs, out):
    ledger = Path(config.report.title)  # a text field that no key holds serves as a place outside the store
    seen = ledger.read_text() if ledger.exists() else ""
    ledger.write_text(seen + "x")
    if not seen:
        raise Preempted("asked to stop")
    if len(seen) == 1:
        raise RuntimeError("out of luck")
    (out.path / "done.txt").write_text("done")
    return {}
