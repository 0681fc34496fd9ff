"""Who takes part in a job, and which of them this process is.

The same words start every host, so the config names all of them and the environment says which one this is:
ENCORE_RANK, or on a TPU slice (`hardware.hosts.names=auto`) what the slice tells its machines.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from conf.schema import Hosts
from tasks.stage import InputError, Preempted

METADATA_SECONDS = 5.0


class Absent(Preempted):
    """A process did not arrive, or left. Ends like a preemption, which on spot machines it usually is: run again."""


@dataclass(frozen=True)
class Job:
    """The processes of one job, one a host. All of them must be given the same `names` and `key`."""

    names: tuple[str, ...]
    rank: int  # this process's place in `names`
    coordinator: str  # address of the first process
    port: int
    key: str = ""  # what the job makes: a process that was started for something else is refused

    @property
    def leads(self) -> bool:
        """Whether this is the process that owns what all of them make."""
        return self.rank == 0

    def called(self, *ranks: int) -> str:
        """`process 1 (host-b), process 3 (host-d)`."""
        return ", ".join(f"process {rank} ({self.names[rank]})" for rank in ranks)


def find(hosts: Hosts, environment: Mapping[str, str] = os.environ) -> Job | None:
    """The job that `hardware.hosts` describes; None for a single process.

    Raises InputError where the rank is missing or not one of the hosts, or where no slice tells who its hosts are.
    """
    if hosts.names == "auto":
        names, rank, source = _slice(environment)
    else:
        names, rank, source = list(hosts.names), "", ""
    rank, source = environment.get("ENCORE_RANK", rank), "ENCORE_RANK" if "ENCORE_RANK" in environment else source
    if len(names) < 2:
        return None
    if not rank.isdecimal() or int(rank) >= len(names):
        raise InputError(
            f"{source or 'ENCORE_RANK'} is {rank!r}: each of the {len(names)} hosts in hardware.hosts.names needs a "
            f"number of its own, from 0 ({names[0]}) to {len(names) - 1} ({names[-1]})."
        )
    return Job(tuple(names), int(rank), names[0], hosts.port)


def _slice(environment: Mapping[str, str]) -> tuple[list[str], str, str]:
    """Hosts of the TPU slice, this one's rank, and who said so: GKE by variables, a TPU VM by its metadata server."""
    if environment.get("TPU_WORKER_HOSTNAMES"):
        names, rank, source = environment["TPU_WORKER_HOSTNAMES"], environment.get("TPU_WORKER_ID", ""), "TPU_WORKER_ID"
    else:
        server = environment.get("GCE_METADATA_HOST", "metadata.google.internal")
        names, rank = (_metadata(server, field) for field in ("worker-network-endpoints", "agent-worker-number"))
        source = "agent-worker-number"
    # an endpoint is an address, or name:id:address
    return [name.strip().rpartition(":")[2] for name in names.split(",") if name.strip()], rank.strip(), source


def _metadata(server: str, field: str) -> str:
    address = f"http://{server}/computeMetadata/v1/instance/attributes/{field}"
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=METADATA_SECONDS) as reply:
            return reply.read(1 << 16).decode()
    except OSError as error:
        raise InputError(
            f"hardware.hosts.names=auto asks the TPU slice for its hosts, and {address} does not answer ({error}): "
            "name them, as in 'hardware.hosts.names=[host-a,host-b]', and give each its ENCORE_RANK."
        ) from error
