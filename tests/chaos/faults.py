"""The faults. Each is a function of the campaign that does its harm, and returns once the harm is done or over."""

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.campaign import Campaign


@dataclass(frozen=True)
class Fault:
    """name: for the table. harm: does it. restarts: whether something has to start again afterwards.

    stages: where it can be done; empty: anywhere. proof: what a stage says afterwards if the harm reached it.
    """

    name: str
    harm: Callable[["Campaign"], None]
    restarts: bool
    stages: tuple[str, ...] = ()
    proof: str = ""


def signal_stage(campaign: "Campaign", number: int) -> None:
    """Send a signal to the process of the stage that runs now."""
    command = campaign.command
    command.wait_for(command.children, 20)
    for pid in command.children():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_stage(campaign: "Campaign") -> None:
    """SIGKILL to the training process, or whichever stage runs."""
    signal_stage(campaign, signal.SIGKILL)


def kill_command(campaign: "Campaign") -> None:
    """SIGKILL to the whole command; every other time the machine is new afterwards."""
    campaign.command.signal(signal.SIGKILL)
    if campaign.random.random() < 0.5:
        campaign.command.wait_for(lambda: not campaign.command.children(), 30)
        shutil.rmtree(campaign.cache, ignore_errors=True)


def terminate_stage(campaign: "Campaign") -> None:
    """SIGTERM to the stage, as a preemption."""
    signal_stage(campaign, signal.SIGTERM)


def terminate_command(campaign: "Campaign") -> None:
    """SIGTERM to the command, as a shutdown."""
    campaign.command.signal(signal.SIGTERM)


def freeze(campaign: "Campaign") -> None:
    """SIGSTOP for longer than the lease; a rival takes over; SIGCONT: the first must leave without writing."""
    first = campaign.command
    first.wait_for(first.children, 20)
    stages = first.children()
    for pid in [*stages, first.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    rival = campaign.start()
    rival.wait_for(lambda: any(event["kind"] in ("progress", "done") for event in rival.events), 60)
    for pid in [*stages, first.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    first.wait_for(lambda: not set(first.children()) & set(stages), 30)
    first.signal(signal.SIGTERM)
    first.wait_for(lambda: False, 30)
    first.end()


def restart_server(campaign: "Campaign") -> None:
    """The object store goes away for a few seconds."""
    campaign.server.stop()
    time.sleep(campaign.random.uniform(1, 4))
    campaign.server.start()


def overload(campaign: "Campaign") -> None:
    """The object store answers 503 for a while."""
    campaign.proxy.status = 503
    time.sleep(campaign.overload_seconds)
    campaign.proxy.status = None


def cut(campaign: "Campaign") -> None:
    """Connections are cut in the middle of an upload, three times."""
    campaign.proxy.cut_after, campaign.proxy.cuts = campaign.random.randint(500, 20_000), 3
    campaign.command.wait_for(lambda: campaign.proxy.cuts == 0, 10)
    campaign.proxy.cuts = 0


def fill_disk(campaign: "Campaign") -> None:
    """No file of the stage can grow for a few seconds (a limit on file size: any user may set it)."""
    command = campaign.command
    command.wait_for(command.children, 20)
    limited = command.children()
    _limit_files(limited, 0)
    time.sleep(campaign.random.uniform(1, 4))
    _limit_files(limited, resource.RLIM_INFINITY)


def _limit_files(pids: list[int], size: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def damage_checkpoint(campaign: "Campaign") -> None:
    """SIGKILL; before a new start a byte of the newest checkpoint is flipped, and the disk's copies are gone.

    Not of the only one: a run that has nothing but damaged checkpoints stops, as it should.
    """
    campaign.command.wait_for(lambda: len(_checkpoints(campaign)) > 1, 60)
    campaign.command.signal(signal.SIGSTOP)
    kill_stage(campaign)
    try:
        for copies in campaign.cache.rglob("checkpoints"):
            shutil.rmtree(copies)
        _flip_a_byte(campaign)
    finally:
        campaign.command.signal(signal.SIGCONT)


def _checkpoints(campaign: "Campaign") -> list[tuple[float, str]]:
    """Of the stage that runs now: when each was committed, and where it is."""
    stage = campaign.command.events[-1].get("stage", "")
    found = campaign.store.root.find(stage).items()
    return [(it.modified, f"{stage}/{name}".rpartition("/")[0]) for name, it in found if name.endswith("/commit.json")]


def _flip_a_byte(campaign: "Campaign") -> None:
    root, checkpoints = campaign.store.root, _checkpoints(campaign)
    if len(checkpoints) < 2:
        return
    folder = max(checkpoints)[1]
    sizes = {name: found.size for name, found in root.find(f"{folder}/data").items()}
    if sizes:
        name = f"{folder}/data/{max(sizes, key=lambda n: sizes[n])}"
        data = bytearray(root.read(name))
        data[campaign.random.randrange(len(data))] ^= 0x10
        root.write(name, bytes(data))


FAULTS = (
    Fault("SIGKILL of the stage", kill_stage, restarts=True),
    Fault("SIGKILL of the command", kill_command, restarts=True),
    Fault("SIGTERM to the stage", terminate_stage, restarts=True),
    Fault("SIGTERM to the command", terminate_command, restarts=True),
    Fault("SIGSTOP past the lease", freeze, restarts=True),
    Fault("object store restarted", restart_server, restarts=False),
    Fault("object store answers 503", overload, restarts=False),
    Fault("connection cut in mid-upload", cut, restarts=False),
    Fault("disk full", fill_disk, restarts=False),
    Fault("newest checkpoint damaged", damage_checkpoint, True, ("base", "sft"), proof="was quarantined"),
)


def sequence(count: int, chance: random.Random) -> list[Fault]:
    """`count` faults: every kind equally often, in a random order."""
    faults = [FAULTS[i % len(FAULTS)] for i in range(count)]
    chance.shuffle(faults)
    return faults
