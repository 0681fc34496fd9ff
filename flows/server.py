"""Prefect's embedded server, started for one command and gone with it.

Prefect starts one by itself when no PREFECT_API_URL is set, but a flow that is ended by SIGTERM leaves it behind
as an orphan that holds the terminal (KNOWN_FAILURES B8). Here the process that starts it also ends it, and on Linux
the kernel does so even when that process is killed.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import httpx
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

STARTUP_SECONDS = 300.0
EVENTS_SECONDS = 5.0
"""Longest wait at the end for events that the server has not taken yet."""
SETTINGS = {
    # Those of Prefect's own embedded server: no UI, only the services that a flow run needs.
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    # It reads and then writes the database in one transaction, which fails where two servers share it.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "0",
}


class ServerError(Exception):
    """The embedded Prefect server did not start; the message holds the end of its log."""


@contextlib.contextmanager
def prefect_api() -> Iterator[str]:
    """The address of the Prefect API to use: the configured one, or an embedded server that lives for the block."""
    configured = PREFECT_API_URL.value()
    if configured:
        yield configured
        return
    port = free_port()
    with tempfile.TemporaryFile() as log:
        with alone():
            server = start_server(port, log.fileno())
            url = f"http://127.0.0.1:{port}/api"
            try:
                wait_until_healthy(server, url, log)
            except BaseException:
                stop(server)
                raise
        try:
            with temporary_settings({PREFECT_API_URL: url}):
                yield url
        finally:
            EventsWorker.drain_all(timeout=EVENTS_SECONDS)  # else it tries for half a minute to reach what is gone
            stop(server)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, no other command of this PREFECT_HOME starts a server.

    Two that start at once on a new database both make its tables, and all but one fail (KNOWN_FAILURES B13).
    """
    home = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "encore-server-start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A TCP port that was free on loopback a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(port: int, log: int) -> subprocess.Popen[bytes]:
    """Prefect's API without the UI, in its own session, so that Ctrl-C on the terminal does not reach it first."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"),
            *("--host", "127.0.0.1", "--port", str(port), "--log-level", "error", "--lifespan", "on"),
        ],
        env={**os.environ, **SETTINGS},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )


def end_with_parent() -> None:
    """Ask the kernel to end this process when the thread that started it is gone (Linux, prctl(2))."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def wait_until_healthy(server: subprocess.Popen[bytes], url: str, log: object) -> None:
    """Return once the API answers; raises ServerError when the process ends or STARTUP_SECONDS pass."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    log.seek(0)  # type: ignore[attr-defined]
    tail = log.read().decode(errors="replace")[-1500:]  # type: ignore[attr-defined]
    raise ServerError(f"The embedded Prefect server did not start; set PREFECT_API_URL to use another one. {tail}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server: SIGTERM, and SIGKILL if it is still there after five seconds."""
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
