"""A command under chaos, seen from outside: its events with the time they arrived, its processes, its end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


class Command:
    """One start of the command. `events` grows while it runs; each has "time" (monotonic seconds)."""

    def __init__(self, words: list[str], env: dict[str, str], log: Path) -> None:
        self.events: list[dict[str, Any]] = [{"kind": "restart", "time": time.monotonic()}]
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.command", *words],
                cwd=REPOSITORY,
                env={**os.environ, **env},
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    def children(self) -> list[int]:
        """Process ids of the stages that it runs now."""
        found = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):  # it ended meanwhile
                found += [int(pid) for pid in path.read_text().split() if self._is_stage(pid)]
        return found

    @staticmethod
    def _is_stage(pid: str) -> bool:
        return b"tasks.store.child" in Path(f"/proc/{pid}/cmdline").read_bytes()

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it and its stages, and wait."""
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        self._process.wait()

    def wait_for(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Wait until the condition holds; False if the command ended or the time passed before."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.code is not None or time.monotonic() > deadline:
                return bool(condition())
            time.sleep(0.005)
        return True

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with suppress(ValueError):  # a line of somebody else's
                event = json.loads(line)
                if isinstance(event, dict) and "kind" in event:
                    self.events.append({**event, "time": time.monotonic()})


def processes_with(variable: str, value: str) -> list[int]:
    """Process ids that have the variable in the environment that they were started with."""
    wanted, found = f"{variable}={value}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or another user's
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found
