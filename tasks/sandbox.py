"""Run a program that nobody has read, such as a model's answer to HumanEval, and learn whether it came to
its end.

The program runs in a jail of Linux namespaces (`tasks/jail.py`): no network, no other process, no
environment, no file but Python's own library and a small private /tmp, with limits on CPU, memory, files,
processes, output and time. It is killed as a group and leaves nothing behind. Where the platform cannot
build that jail, `unavailable()` says why and `run` refuses: there is no weaker mode.

The jail protects the machine. The verdict is a test's: a program that searches the interpreter's own frames
could forge its pass, one that merely exits, hangs, forks or throws cannot.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tasks import jail

JAIL = Path(jail.__file__)


@dataclass(frozen=True)
class Limits:
    """What a program may use. The first two are HumanEval's in nanochat."""

    seconds: float = 5.0  # wall clock, and CPU of each process to the next second
    memory_bytes: int = 256 * 2**20  # address space of each process
    file_bytes: int = 2**20  # of one file; all files together sixteen times as much
    output_bytes: int = 64 * 2**10
    processes: int = 8  # the program's own and the one that waits for it included


@dataclass(frozen=True)
class Outcome:
    """How a program ended. `reason` is one line; `output` is what it printed, stderr included."""

    passed: bool
    reason: str
    output: str


class SandboxError(RuntimeError):
    """No jail can be built here; nothing was run."""


def run(source: str, limits: Limits = Limits()) -> Outcome:
    """Run `source` as a program; passed means that it ran to its last line without an exception.

    Raises SandboxError where this machine cannot isolate it.
    """
    if sys.platform != "linux":
        raise SandboxError(
            f"generated programs run only on Linux, whose namespaces isolate them, not on {sys.platform}"
        )
    nonce = secrets.token_hex(16)
    verdict_read, verdict_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="encore-jail-") as root, os.fdopen(verdict_read, "rb") as verdict:
        private = {"source": source, "nonce": nonce, "root": root, "verdict_fd": verdict_write}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(JAIL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[verdict_write],
            env={},
            start_new_session=True,
        )
        try:
            os.close(verdict_write)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(private | asdict(limits)).encode())
            output, stopped = _collect(process, limits)
        finally:
            _kill(process)
        passed = stopped is None and verdict.read(len(nonce) + 1) == nonce.encode()
    text = output[: limits.output_bytes].decode("utf-8", "replace")
    if process.returncode == jail.SETUP_FAILED:
        raise SandboxError(f"this machine does not let a program be isolated: {text.strip()}")
    if passed:
        return Outcome(True, "passed", text)
    return Outcome(False, stopped or _last_line(text) or f"ended early with status {process.returncode}", text)


@cache
def unavailable() -> str | None:
    """Why no program can be run here, or None where the jail works; tried once, with an empty program."""
    try:
        outcome = run("", Limits(seconds=10))
    except (SandboxError, OSError) as error:
        return str(error)
    return None if outcome.passed else f"an empty program does not run in the jail: {outcome.reason}"


def _collect(process: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, str | None]:
    """Output until every process of the jail is gone, and why it had to be stopped, if it had to be."""
    deadline = time.monotonic() + limits.seconds
    output = bytearray()
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            chunk = os.read(process.stdout.fileno(), 2**16)
            if not chunk:
                return bytes(output), None
            output += chunk
            if len(output) > limits.output_bytes:
                return bytes(output), f"wrote more than {limits.output_bytes} bytes"
    return bytes(output), f"still running after {limits.seconds:g} s"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the jail's first processes, with which the kernel kills all others, and wait until none is
    left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    with process.stdout:
        while os.read(process.stdout.fileno(), 2**16):  # ends when the last process that could write is dead
            pass


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
