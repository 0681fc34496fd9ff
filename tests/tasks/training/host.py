"""One host of a job, as a flow runs stages on it; started by test_hosts once for each host.

    python -m tests.tasks.training.host <stage,stage> <directory of the store> <fault> word …

Prints their events as JSON lines; exits with 0, 75 or 1 as the last one ended. A fault `TERM:6` or `KILL:6` sends
that signal to a stage's process once step 6 is done. The fault `LATE:conversations` lets a host begin that stage only
when another one has said that it waits for it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tasks.store import StageFailed, StagePreempted, Store, parent, run_stage
from tests.tasks.training.tiny import BASE_INPUTS, SFT_INPUTS, config

ROLES = {"base": BASE_INPUTS, "sft": SFT_INPUTS, "conversations": ("tokenizer",)}


def main(stages: str, place: Path, fault: str, words: list[str]) -> int:
    """Run the stages on this host, one after another."""
    name, _, when = fault.partition(":")
    said = place.parent / "said"  # what hosts tell each other in this test; a file for each message

    def on_event(event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)
        if waited := re.search(r"waiting for (\w+)/", event.get("message", "")):
            said.mkdir(exist_ok=True)
            (said / waited[1]).touch()
        if name in ("TERM", "KILL") and event.get("step") == int(when) and "loss" in event:
            os.kill(next(iter(parent._running)).pid, signal.Signals[f"SIG{name}"])

    store = Store(place, cache_dir=place.parent / f"cache-{os.environ['ENCORE_RANK']}", lease_seconds=5)
    try:
        for stage in stages.split(","):
            while fault == f"LATE:{stage}" and not (said / stage).exists():
                time.sleep(0.05)  # the test gives the process its time limit
            made = {role: store.artifact(role, next((place / role).iterdir()).name) for role in ROLES[stage]}
            run_stage(stage, config(*words), made, store, on_event=on_event)
    except (StagePreempted, StageFailed) as ended:
        print(json.dumps({"kind": "ended", "message": str(ended)}))
        return 75 if isinstance(ended, StagePreempted) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
