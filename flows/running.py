"""One stage as a Prefect task: retried, logged, drawn; whether it is done is for the store alone to say."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.tasks import Task

from conf.schema import Config
from flows.console import StageProgress
from flows.previous import previous_prompts
from tasks.store import Artifact, StageRefused, Store, run_stage


@dataclass(frozen=True)
class Outcome:
    """What became of one stage in this run."""

    label: str
    artifact: Artifact
    how: str  # "run" or "reused"
    seconds: float  # in this run, waiting included
    attempts: int  # in this run; 0 when reused
    note: str = ""  # such as "3 source files changed since"


def worth_retrying(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Retry what was preempted or failed; never what the stage refused (a wrong config or input stays wrong)."""
    error = state.result(raise_on_failure=False)
    return not isinstance(error, StageRefused)


@dataclass
class Runner:
    """Runs stages one after another on one store. Prefect's own result cache is off: see KNOWN_FAILURES B1 to B4."""

    config: Config
    store: Store
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __call__(self, stage: str, *, label: str = "", **inputs: Artifact) -> Artifact:
        """The artifact of `stage` for these inputs, made now unless the store has it."""
        label = label or stage
        outcome = self._as_task(stage, label, inputs)()
        self.outcomes[label] = outcome
        return outcome.artifact

    def _as_task(self, stage: str, label: str, inputs: Mapping[str, Artifact]) -> Task[[], Outcome]:
        flow = self.config.flow
        attempts = 0

        @task(
            name=stage,
            task_run_name=label,
            retries=flow.retries,
            retry_delay_seconds=flow.retry_seconds,
            retry_condition_fn=worth_retrying,
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        def attempt() -> Outcome:
            nonlocal attempts
            log, started = get_run_logger(), time.monotonic()
            found = self.store.locate(stage, self.config, {role: made.key for role, made in inputs.items()})
            if found.artifact:
                log.info("reused %s (%s)", found.artifact.where[:24], found.reason)
                how, note = "run" if attempts else "reused", found.reason if found.changed_files else ""
                return Outcome(label, found.artifact, how, time.monotonic() - started, attempts, note)
            attempts += 1
            log.info("running: %s", found.reason)
            with StageProgress(label, log.info) as progress:

                def on_event(event: dict[str, Any]) -> None:
                    kind = event.pop("kind")
                    if kind == "progress":
                        progress(event)
                    elif kind in ("log", "output"):
                        log.info("%s", event.get("message", ""))

                artifact = run_stage(
                    stage,
                    self.config,
                    dict(inputs),
                    self.store,
                    on_event=on_event,
                    run_info=self.run_info() | self.comparison(stage, inputs),
                    grace_seconds=flow.grace_seconds,
                )
            return Outcome(label, artifact, "run", time.monotonic() - started, attempts)

        return attempt

    def run_info(self) -> dict[str, Any]:
        """How this run went so far, for the report; never part of a key."""
        return {"stages": {label: made.how for label, made in self.outcomes.items()}, "notes": self.notes}

    def comparison(self, stage: str, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
        """What the report compares this run with; nothing for other stages."""
        if stage != "report":
            return {}
        return {"previous_prompts": previous_prompts(self.store, self.config.name, inputs["prompts"])}
