"""A stage without substance, to try the store with; what it does is told by its config's `data.paths`."""

import os
import signal
import sys
import time
from pathlib import Path

from tasks.stage import InputError, Stage

STAGE = Stage(
    name="toy", version=1, reads=("seed", "name"), runtime=("data.paths",), optional=("source",), resumable=True
)
PARTS = 5


def run(config, inputs, out):
    """Writes PARTS files of one line each; `data.paths` holds words such as `wait:3`, `fail`, `refuse`."""
    words = dict(word.partition(":")[::2] for word in config.data.paths)
    if "fail" in words:
        print("about to fail")
        raise RuntimeError("a bug")
    if "refuse" in words:
        raise InputError("data.paths names nothing that exists: correct it.")
    if "exit0" in words:
        os._exit(0)
    for index in range(PARTS):
        name = f"parts/{index}.txt"
        if name in out.finished():
            out.log(f"{name} kept")
            continue
        (out.path / "parts").mkdir(exist_ok=True)
        (out.path / name).write_text(f"{config.seed} {index}\n" * 1000)
        out.publish(name)
        out.progress(step=index + 1, total=PARTS)
        time.sleep(float(words.get("pause", 0)))
        if words.get("kill") == str(index) and not _seen(words, "kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if words.get("wait") == str(index) and not _seen(words, "wait"):
            while not out.stop.wait(0.05):
                pass
            time.sleep(float(words.get("linger", 0)))
        out.stop.check()
    (out.path / "scratch").mkdir(exist_ok=True)
    (out.path / "scratch/junk").write_text("not kept")
    (out.path / "whole.txt").write_text("".join((out.path / f"parts/{i}.txt").read_text() for i in range(PARTS)))
    print("written", file=sys.stderr)
    return {"parts": PARTS, "seed": config.seed}


def _seen(words, what):
    """True from the second time on, so that a fault is injected once; `marks:<dir>` is where it is noted."""
    mark = Path(words["marks"]) / what
    if mark.exists():
        return True
    mark.write_text("")
    return False
