"""The processes of one job meet by name before JAX starts.

JAX's own start aborts a process, with a stack trace, when another one is missing. So all first call the first one
over a plain socket, on the port that JAX will use; it waits for a set time and tells everybody who is missing.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tasks.stage import InputError, Preempted

PORT = 8476  # open in the firewall rules of TPU slices; JAX's own choice since 0.8.1 is not (jax#35905)


class Absent(Preempted):
    """A process did not arrive, or left. Ends like a preemption, which on spot machines it usually is: run again."""


@dataclass(frozen=True)
class Job:
    """The processes of one job. All of them must be given the same `names` and `key`."""

    names: tuple[str, ...]  # one a process, such as host names; the first one coordinates
    rank: int  # this process's place in `names`
    coordinator: str  # host of the first process
    port: int = PORT
    key: str = ""  # what the job makes: a process that was started for something else is refused

    @classmethod
    def from_environment(cls, key: str, environment: Mapping[str, str] = os.environ) -> Job | None:
        """From ENCORE_HOSTS=a[:port],b and ENCORE_RANK, or from what TPU slices set; None for a single process.

        Raises InputError when the rank is missing or not one of the hosts.
        """
        for hosts_name, rank_name in (("ENCORE_HOSTS", "ENCORE_RANK"), ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")):
            hosts = [host.strip() for host in environment.get(hosts_name, "").split(",") if host.strip()]
            if not hosts:
                continue
            if len(hosts) == 1:
                return None
            rank, last = environment.get(rank_name, ""), len(hosts) - 1
            if not rank.isdecimal() or int(rank) > last:
                raise InputError(
                    f"{rank_name} is {rank!r}: with these {hosts_name} it must be a number from 0 to {last}."
                )
            coordinator, _, port = hosts[0].partition(":")
            names = tuple(host.partition(":")[0] for host in hosts)
            return cls(names, int(rank), coordinator, int(port or PORT), key)
        return None

    def called(self, *ranks: int) -> str:
        """`process 1 (host-b), process 3 (host-d)`."""
        return ", ".join(f"process {rank} ({self.names[rank]})" for rank in ranks)


def meet(job: Job, seconds: float) -> None:
    """Return once every process of the job has called.

    Raises, in every process that did call, Absent naming who has not after `seconds`, or InputError naming a process
    that was started for another job or with another's rank.
    """
    deadline = time.monotonic() + seconds
    verdict = _gather(job, deadline, seconds) if job.rank == 0 else _report(job, deadline, seconds)
    if verdict.get("wrong"):
        raise InputError(verdict["wrong"])
    if verdict.get("absent"):
        raise Absent(verdict["absent"])


def _gather(job: Job, deadline: float, seconds: float) -> dict[str, str]:
    """The first process: hear all others, then tell each of them the same verdict."""
    arrived: set[int] = set()
    callers: list[socket.socket] = []
    verdict: dict[str, str] = {}
    with ExitStack() as open_sockets:
        server = open_sockets.enter_context(socket.create_server(("", job.port)))
        while len(arrived) < len(job.names) - 1 and not verdict:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                caller = open_sockets.enter_context(server.accept()[0])
            except TimeoutError:
                break
            try:
                hello = _receive(caller, min(deadline, time.monotonic() + 5))
                rank, wrong = int(hello["rank"]), _wrong(job, hello, arrived)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a port scanner, or a process that left again
            callers.append(caller)
            arrived.add(rank)
            verdict = {"wrong": wrong} if wrong else {}
        missing = [rank for rank in range(1, len(job.names)) if rank not in arrived]
        if missing and not verdict:
            absent = f"{job.called(*missing)} did not arrive at {job.coordinator}:{job.port} within {seconds:g} s"
            verdict = {"absent": f"{absent}: start it, and let its network reach that port"}
        for caller in callers:
            _send(caller, verdict)
    return verdict


def _wrong(job: Job, hello: dict[str, Any], arrived: set[int]) -> str:
    """Why a caller is none of the job's other processes, or nothing."""
    rank = int(hello["rank"])
    if hello["key"] != job.key or hello["names"] != list(job.names):
        return f"{hello['host']} was started for another job than {job.called(0)}: start all hosts alike."
    if rank in arrived or not 0 < rank < len(job.names):
        return f"Two processes say that they are rank {rank}, one on {hello['host']}: give each host its own rank."
    return ""


def _report(job: Job, deadline: float, seconds: float) -> dict[str, str]:
    """Any other process: call the first one until it answers, and return its verdict."""
    hello = {"rank": job.rank, "names": list(job.names), "key": job.key, "host": socket.gethostname()}
    while time.monotonic() < deadline:
        try:
            left = max(0.01, deadline - time.monotonic())
            with socket.create_connection((job.coordinator, job.port), timeout=left) as caller:
                _send(caller, hello)
                return _receive(caller, deadline + seconds)  # the first one's time may have started later
        except (OSError, ValueError):
            time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
    return {"absent": f"{job.called(0)} did not answer at {job.coordinator}:{job.port} within {seconds:g} s"}


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    to.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    with connection.makefile("rb") as lines:
        message = json.loads(lines.readline(1 << 16))
    if not isinstance(message, dict):
        raise ValueError("not a message of a job")
    return message
