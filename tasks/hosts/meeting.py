"""The processes of one job meet by name before JAX starts, and notice by name when one of them leaves.

JAX's own start aborts a process, with a stack trace, when another one is missing; and a collective waits for one that
died without a word. So all first call the first one over a plain socket, on the port that JAX will use; it waits for a
set time and tells everybody who is missing. These connections then stay open: one that ends tells who is gone.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tasks.hosts.job import Absent, Job
from tasks.stage import InputError, StopSignal

GRACE_SECONDS = 3.0  # for a process to end by itself, and with its own words, after it has heard that another left
FAREWELL_SECONDS = 6.0  # that a process which tells others stays: its end could end them (JAX's coordinator)
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # a host without power shows in 30 s

Lines = dict[int, socket.socket]


class Meeting:
    """Processes that have met, and their open connections: the first one's to all others, theirs to it."""

    def __init__(self, job: Job, lines: Lines, attempt: int, on_gone: Callable[[str], None]) -> None:
        """`attempt`: the first one's. `on_gone` is called from a thread and must end this process."""
        self.job, self.attempt = job, attempt
        self._lines, self._on_gone = lines, on_gone
        self._gone = ""
        self._known = threading.Event()
        self._over = False
        self._lock = threading.Lock()
        for rank, line in lines.items():
            line.settimeout(None)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE.items():
                if hasattr(socket, option):
                    line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            threading.Thread(target=self._listen, args=(rank, line), name="meeting", daemon=True).start()

    def disperse(self) -> None:
        """From now on processes leave because the work is done."""
        self._over = True

    def end(self, reason: str) -> None:
        """This process leaves before the work is done: tell the others, and stay until they have heard it."""
        if not self._over:
            self._over = True
            self._tell(f"{self.job.called(self.job.rank)} has left: {reason}", self._lines)
        self.close()

    def loss(self, seconds: float) -> str:
        """Who is gone, as a sentence, known within `seconds`; empty when nobody is."""
        if self._known.wait(seconds) or self._gone:
            self._known.wait(FAREWELL_SECONDS)
        return self._gone

    def close(self) -> None:
        """Close the connections."""
        self._over = True
        for line in self._lines.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _listen(self, rank: int, line: socket.socket) -> None:
        """Wait until that connection ends, or tells of another one, which is then the end of the job."""
        said = b""
        with suppress(OSError):
            said = line.recv(1 << 16)
        with self._lock:
            if self._over or self._gone:
                return
            self._gone = f"{self.job.called(rank)} is gone"
            with suppress(ValueError, KeyError, TypeError):
                self._gone = json.loads(said)["gone"]
        self._tell(self._gone, {other: line for other, line in self._lines.items() if other != rank})
        self._known.set()
        time.sleep(GRACE_SECONDS)
        if not self._over:
            self._on_gone(self._gone)

    def _tell(self, sentence: str, lines: Lines) -> None:
        """Tell those processes and wait until they have closed their connections."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        for line in lines.values():
            with suppress(OSError):
                _send(line, {"gone": sentence})
        for line in lines.values():
            with suppress(OSError):
                line.settimeout(max(0.01, deadline - time.monotonic()))
                while line.recv(1 << 16):
                    continue


@contextmanager
def met(
    job: Job | None, seconds: float, attempt: int, stop: StopSignal, on_gone: Callable[[str], None]
) -> Iterator[Meeting | None]:
    """All processes of the job, met within `seconds`; None for a single process. See `meet` for what it raises.

    An error inside is told to the others; one that comes of a process which is gone becomes Absent, naming it.
    """
    if job is None:
        yield None
        return
    meeting = meet(job, seconds, attempt, stop, on_gone)
    try:
        yield meeting
    except (RuntimeError, ValueError) as error:  # JAX has no type of its own for a collective that lost somebody
        if gone := meeting.loss(GRACE_SECONDS):
            raise Absent(gone) from error
        meeting.end(f"{type(error).__name__}: {error}"[:500])
        raise
    except Exception as error:
        meeting.end(str(error)[:500])
        raise
    finally:
        meeting.close()


def meet(
    job: Job,
    seconds: float,
    attempt: int = 0,
    stop: StopSignal | None = None,
    on_gone: Callable[[str], None] = lambda sentence: None,
) -> Meeting:
    """Return once every process of the job has called.

    Raises, in every process that did call, Absent naming who has not after `seconds`, or InputError naming a process
    that was started for another job or with another's rank. Raises Preempted through `stop`.
    """
    deadline, stop = time.monotonic() + seconds, stop or StopSignal()
    if job.leads:
        verdict, lines = _gather(job, deadline, seconds, attempt, stop)
    else:
        verdict, lines = _report(job, deadline, seconds, stop)
    if verdict.get("wrong"):
        raise InputError(verdict["wrong"])
    if verdict.get("absent"):
        raise Absent(verdict["absent"])
    return Meeting(job, lines, int(verdict["attempt"]), on_gone)


def _gather(job: Job, deadline: float, seconds: float, attempt: int, stop: StopSignal) -> tuple[dict[str, Any], Lines]:
    """The first process: hear all others, then tell each of them the same verdict."""
    lines: Lines = {}
    verdict: dict[str, Any] = {}
    with ExitStack() as refused, _listening(job) as server:
        while len(lines) < len(job.names) - 1 and not verdict and time.monotonic() < deadline:
            stop.check()
            server.settimeout(max(0.01, min(1.0, deadline - time.monotonic())))
            try:
                caller = refused.enter_context(server.accept()[0])
                hello = _receive(caller, min(deadline, time.monotonic() + 5))
                rank, wrong = int(hello["rank"]), _wrong(job, hello, lines)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # nobody yet, a port scanner, or a process that left again
            verdict = {"wrong": wrong} if wrong else {}
            lines[-1 if wrong else rank] = caller
        missing = [rank for rank in range(1, len(job.names)) if rank not in lines]
        if missing and not verdict:
            absent = f"{job.called(*missing)} did not arrive at {job.coordinator}:{job.port} within {seconds:g} s"
            verdict = {"absent": f"{absent}: start it, and let its network reach that port"}
        verdict = verdict or {"attempt": attempt}
        for caller in lines.values():
            with suppress(OSError):
                _send(caller, verdict)
        if "attempt" in verdict:
            refused.pop_all()
    return verdict, lines


def _listening(job: Job) -> socket.socket:
    try:
        return socket.create_server(("", job.port))
    except OSError as error:
        raise InputError(
            f"Port {job.port} of {job.called(job.rank)} cannot be listened on ({error.strerror}): end what holds it, "
            "or set hardware.hosts.port to another one on all hosts."
        ) from error


def _wrong(job: Job, hello: dict[str, Any], lines: Lines) -> str:
    """Why a caller is none of the job's other processes, or nothing."""
    rank = int(hello["rank"])
    if hello["key"] != job.key or hello["names"] != list(job.names):
        return f"{hello['host']} was started for another job than {job.called(0)}: start all hosts alike."
    if rank in lines or not 0 < rank < len(job.names):
        return f"Two processes say that they are rank {rank}, one on {hello['host']}: give each host its own rank."
    return ""


def _report(job: Job, deadline: float, seconds: float, stop: StopSignal) -> tuple[dict[str, Any], Lines]:
    """Any other process: call the first one until it answers, and return its verdict."""
    hello = {"rank": job.rank, "names": list(job.names), "key": job.key, "host": socket.gethostname()}
    while time.monotonic() < deadline:
        stop.check()
        line = None
        try:
            left = max(0.01, deadline - time.monotonic())
            line = socket.create_connection((job.coordinator, job.port), timeout=left)
            _send(line, hello)
            return _receive(line, deadline + seconds), {0: line}  # the first one's time may have started later
        except (OSError, ValueError):
            if line is not None:
                line.close()
            stop.wait(min(0.2, max(0.0, deadline - time.monotonic())))
    return {"absent": f"{job.called(0)} did not answer at {job.coordinator}:{job.port} within {seconds:g} s"}, {}


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    to.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    with connection.makefile("rb") as lines:
        message = json.loads(lines.readline(1 << 16))
    if not isinstance(message, dict):
        raise ValueError("not a message of a job")
    return message
