"""The command under chaos: `python -m tests.chaos.command whole|front word…`, telling every event as a line of JSON.

whole: `flows.cycle` as a user runs it. front: the stages up to base, tried again as Prefect would, without Prefect.
"""

import json
import sys
from typing import Any

from conf.compose import compose
from tasks.store import Artifact, StageFailed, StagePreempted, Store, run_stage

ATTEMPTS = 6


def tell(**event: Any) -> None:
    """One line for the campaign."""
    print(json.dumps(event, default=str), flush=True)


def told_run_stage(stage: str, config: Any, inputs: Any, store: Store, *, on_event: Any = None, **how: Any) -> Artifact:
    """`run_stage` that also tells the campaign what happens."""
    tell(kind="start", stage=stage)

    def both(event: dict[str, Any]) -> None:
        tell(**{**event, "stage": stage})
        if on_event:
            on_event(event)

    return run_stage(stage, config, inputs, store, on_event=both, **how)


def whole(words: list[str]) -> int:
    """The cycle, as a flow."""
    from flows import cycle, running

    running.run_stage = told_run_stage
    return cycle.main(words)


def front(words: list[str]) -> int:
    """Corpus to base, each stage tried ATTEMPTS times."""
    config = compose(words)
    store = Store.from_config(config.store)

    def stage(name: str, **inputs: Artifact) -> Artifact:
        for attempt in range(ATTEMPTS):
            try:
                return told_run_stage(name, config, inputs, store)
            except (StagePreempted, StageFailed) as error:
                tell(kind="ended", stage=name, message=str(error), attempt=attempt)
        raise SystemExit(f"stage {name} did not finish in {ATTEMPTS} attempts")

    corpus = stage("corpus")
    tokenizer = stage("tokenizer", corpus=corpus)
    stage("base", shards=stage("shards", corpus=corpus, tokenizer=tokenizer), tokenizer=tokenizer)
    return 0


if __name__ == "__main__":
    sys.exit({"whole": whole, "front": front}[sys.argv[1]](sys.argv[2:]))
