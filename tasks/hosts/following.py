"""What the other hosts of a job do: train along, unable to store anything, and wait for what the first one makes.

They hold no lease and have no workspace, so there is nothing they could write an artifact with. Whether a stage is
done is told to them by the store's manifest, as to everybody else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks import stage as stages
from tasks.hosts.job import Absent, Job
from tasks.hosts.meeting import Meeting, met
from tasks.stage import Preempted, StopSignal
from tasks.store.artifact import Artifact
from tasks.store.events import Events
from tasks.store.lease import heartbeat
from tasks.store.manifest import Damaged
from tasks.store.store import Store
from tasks.store.view import ConfigView

POLL_SECONDS = 2.0


class Guest:
    """In place of a workspace: a directory that is thrown away, a stop signal, and a log."""

    def __init__(self, path: Path, events: Events, stop: StopSignal, meeting: Meeting | None) -> None:
        self.path, self.events, self.stop, self.meeting = path, events, stop, meeting

    def progress(self, **fields: Any) -> None:
        """One progress event: every host shows how far it is."""
        self.events.progress(**fields)

    def log(self, message: str) -> None:
        """One line for the log."""
        self.events.log(message)


def follow(
    stage_name: str,
    config: Any,
    inputs: Mapping[str, Artifact],
    store: Store,
    job: Job,
    *,
    events: Events,
    stop: StopSignal,
    on_gone: Callable[[str], None],
) -> Artifact:
    """Run a stage along with the first host and return the artifact that this one makes of it.

    Raises what `run` raises; Absent naming who did not come or is gone; Preempted when the first host begins anew.
    """
    stage, run = stages.load(stage_name)
    key = store.locate(stage_name, config, {role: made.key for role, made in inputs.items()}).key
    hosts = config.hardware.hosts
    job = replace(job, key=f"{stage.name}/{key}")
    with (
        tempfile.TemporaryDirectory(prefix="encore-") as directory,
        met(job, 60 * hosts.start_minutes, 0, stop, on_gone) as meeting,
    ):
        run(ConfigView(config, stage), inputs, Guest(Path(directory), events, stop, meeting))
    assert meeting is not None
    return await_artifact(
        store, stage.name, key, job, 60 * hosts.wait_minutes, events.log, stop=stop, attempt=meeting.attempt
    )


def await_artifact(
    store: Store,
    stage: str,
    key: str,
    job: Job,
    seconds: float,
    log: Callable[[str], None],
    *,
    stop: StopSignal | None = None,
    attempt: int | None = None,
) -> Artifact:
    """The artifact, once the first host has finished it.

    Raises Absent when for `seconds` nobody has worked on it, as heartbeats of its lease tell; Preempted through `stop`,
    or when an attempt after `attempt` has begun, which this host must join.
    """
    where, first = f"{stage}/{key}", job.called(0)
    log(f"waiting for {where[:24]}, which {first} makes")
    seen: tuple[int, bytes] | None = None
    since = store.clock.now()
    while True:
        try:
            if made := store.lookup(stage, key):
                return made
        except Damaged:
            pass  # the first host drops it and makes it again
        beat = heartbeat(store.root, where)
        if attempt is not None and beat[0] > attempt:
            raise Preempted(f"{first} began anew")
        if beat != seen:
            seen, since = beat, store.clock.now()
        if store.clock.now() - since > seconds:
            raise Absent(
                f"{first} has shown no sign of work on {where[:24]} for {seconds / 60:g} minutes: run the same command "
                "there, too"
            )
        if stop:
            stop.check()
        store.clock.sleep(POLL_SECONDS)
