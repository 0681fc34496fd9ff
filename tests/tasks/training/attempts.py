"""Attempts at one key of a local store, as the stage runner makes them, for tests of what survives an attempt."""

from __future__ import annotations

from pathlib import Path

from tasks.stage import StopSignal
from tasks.store.events import Event, Events, Listener
from tasks.store.lease import Lease
from tasks.store.local import LocalRoot
from tasks.store.workspace import Workspace

WHERE = "base/" + "0" * 8


class Attempt:
    """The workspace of the next attempt below `directory`, and what it told."""

    def __init__(self, directory: Path) -> None:
        self.root = LocalRoot(directory / "root")
        self.stored = directory / "root" / WHERE
        self.lease = Lease(self.root, WHERE, seconds=60)
        token = self.lease.acquire()
        self.told: list[Event] = []
        self.listeners: list[Listener] = [self.told.append]
        self.stop = StopSignal()
        self.out = Workspace(
            self.root, WHERE, self.lease, directory / "work" / str(token), Events(self._listen), self.stop
        )
        self.out.adopt(resumable=True)

    def _listen(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    @property
    def lines(self) -> list[str]:
        return [event["message"] for event in self.told if event["kind"] == "log"]

    def end(self) -> None:
        """Give the key back, as a process that ends does; what is unfinished stays as it is."""
        self.lease.release()
