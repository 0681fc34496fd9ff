"""Runs a stage in a child process and turns how it ended into a value or an exception."""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from tasks import stage as stages
from tasks.hosts import job as jobs
from tasks.stage import Preempted
from tasks.store import protocol
from tasks.store.artifact import Artifact
from tasks.store.events import Event, Events, Listener, to_stderr
from tasks.store.secrets import redact
from tasks.store.sources import PROJECT
from tasks.store.store import Located, Store

LAST_LINES = 20
"""Lines of output that a failure carries."""
CONTINUES = "The same command continues it."


class StageEnded(Exception):
    """A stage that did not finish. `str(error)` is one sentence."""


class StagePreempted(StageEnded):
    """It stopped on request after saving: run it again to continue."""


class StageRefused(StageEnded):
    """Wrong config or input: running it again cannot help."""


class StageFailed(StageEnded):
    """It failed. `output`: its last lines."""

    def __init__(self, sentence: str, output: str = "") -> None:
        super().__init__(sentence)
        self.output = output


_running: set["Child"] = set()


def stop_children() -> None:
    """Ask every running stage to save and leave, from any thread; for flows that run stages in threads."""
    for process in list(_running):
        process.stop()


def run_stage(
    stage_name: str,
    config: Any,
    inputs: Mapping[str, Artifact],
    store: Store,
    *,
    on_event: Listener | None = None,
    run_info: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    grace_seconds: float = 30.0,
) -> Artifact:
    """The artifact of a stage: at once if it exists, else made by a child process, or awaited from the first host.

    on_event gets the child's events and, as {"kind": "output", "stream", "message"}, its lines; default: stderr.
    env: variables for the child besides this process's own. SIGTERM and SIGINT to this process, while the main thread
    waits here, become a request to save; the child gets grace_seconds, and the signal then takes its usual course.

    Raises StageRefused, StagePreempted, StageFailed.
    """
    listener = on_event or to_stderr
    located = store.locate(stage_name, config, {role: made.key for role, made in inputs.items()})
    if located.artifact:
        return located.artifact
    hosts = config.hardware.hosts
    job, alone = jobs.find(hosts), not stages.declaration(stage_name).all_hosts
    if job and alone and not job.leads:
        return _awaited(located, job, 60 * hosts.wait_minutes, store, listener)
    from conf.compose import to_plain

    request = {
        "stage": stage_name,
        "config": to_plain(config),
        "inputs": {role: {"stage": made.stage, "key": made.key} for role, made in inputs.items()},
        "store": store.options(),
        "run_info": dict(run_info or {}),
        "grace_seconds": grace_seconds,
    }
    process = Child(request, listener, {**os.environ, **(hosts.alone if job and alone else {}), **(env or {})})
    with _forwarding(process):
        code = process.wait()
    if code == -signal.SIGABRT and job and not job.leads:
        # How JAX ends the others when the first process, which coordinates them, is gone: before they can say so.
        raise StagePreempted(f"Stage '{stage_name}' was aborted as {job.called(0)} is gone. {CONTINUES}")
    return _result(stage_name, code, process, store)


def _awaited(located: Located, job: jobs.Job, seconds: float, store: Store, listener: Listener) -> Artifact:
    """The artifact that the first host makes."""
    from tasks.hosts.following import await_artifact

    try:
        return await_artifact(store, located.stage, located.key, job, seconds, Events(listener).log)
    except Preempted as error:
        raise StagePreempted(f"Stage '{located.stage}': {error}. {CONTINUES}") from error


class Child:
    """A stage's process, in a process group of its own."""

    def __init__(self, request: dict[str, Any], listener: Listener, env: Mapping[str, str]) -> None:
        self.last: Event = {}
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._listener, self._grace = listener, request["grace_seconds"]
        self._events, told = os.pipe()
        paths = [str(PROJECT), *filter(None, [env.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tasks.store.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[told],
                env={
                    **env,
                    protocol.EVENTS_VARIABLE: str(told),
                    "PYTHONPATH": os.pathsep.join(paths),
                    "PYTHONUNBUFFERED": "1",
                },
                start_new_session=True,
            )
        finally:
            os.close(told)
        _running.add(self)
        self._deadline: threading.Timer | None = None
        self._say(json.dumps(request).encode() + b"\n")

    @property
    def pid(self) -> int:
        """Process id, also of the process group."""
        return self._process.pid

    def stop(self) -> None:
        """Ask it to save and leave; a second call ends it at once, as does the deadline."""
        self._say(protocol.STOP_LINE)
        if self._deadline is None:
            self._deadline = threading.Timer(self._grace + 5.0, self.kill)
            self._deadline.daemon = True
            self._deadline.start()

    def kill(self) -> None:
        """End the whole process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Pass on events and output until the process ends; returns its status. Leaves nothing of its group behind."""
        try:
            try:
                self._pump()
            except BaseException:  # the listener's; the stage still gets to save
                self._listener = lambda event: None
                self.stop()
                self._pump()
                raise
            return self._process.wait()
        finally:
            self.kill()
            self._process.wait()
            if self._deadline:
                self._deadline.cancel()
            _running.discard(self)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                with suppress(BrokenPipeError):
                    stream.close()  # type: ignore[union-attr]
            os.close(self._events)

    def _pump(self) -> None:
        """Read the three streams until the process has closed its event channel by ending."""
        assert self._process.stdout
        assert self._process.stderr
        names = {
            self._events: "events",
            self._process.stdout.fileno(): "stdout",
            self._process.stderr.fileno(): "stderr",
        }
        partial = dict.fromkeys(names, b"")
        with selectors.DefaultSelector() as selector:
            for descriptor in names:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(timeout=0.5)
                for event, _ in ready:
                    data = os.read(event.fd, 65536)
                    if not data:
                        selector.unregister(event.fd)
                    *whole, partial[event.fd] = (partial[event.fd] + data + (b"" if data else b"\n")).split(b"\n")
                    for line in whole:
                        self._take(names[event.fd], line.decode(errors="replace"))
                if not ready and self._process.poll() is not None:
                    return  # something it started holds a stream open; its group ends with it

    def _take(self, stream: str, line: str) -> None:
        if not line.strip():
            return
        if stream == "events":
            try:
                event = json.loads(line)
            except ValueError:  # cut off by the end of the process
                return
            if event["kind"] in ("done", "stopped", "refused", "failed"):
                self.last = event
        else:
            line = redact(line.rstrip("\r"))
            self.lines.append(line)
            event = {"kind": "output", "stream": stream, "message": line}
        self._listener(dict(event))

    def _say(self, line: bytes) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()


@contextmanager
def _forwarding(process: Child) -> Iterator[None]:
    """While inside, SIGTERM and SIGINT become a request to the child; afterwards they take their usual course.

    Only the main thread may handle signals; elsewhere whoever handles them calls `stop_children`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        process.stop()

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _result(stage_name: str, code: int, process: Child, store: Store) -> Artifact:
    message = process.last.get("message", "")
    if code == protocol.DONE and process.last.get("kind") == "done":
        # Exit status 0 is a claim; the manifest is the proof (KNOWN_FAILURES B56).
        return store.artifact(process.last["stage"], process.last["key"])
    if code == protocol.PREEMPTED:
        raise StagePreempted(f"Stage '{stage_name}' {message or 'stopped'}. {CONTINUES}")
    if code == protocol.REFUSED:
        raise StageRefused(message)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with status {code}"
    detail = f": {message}" if message else "; its last lines tell why."
    raise StageFailed(f"Stage '{stage_name}' {how}{detail}", "\n".join(process.lines))
