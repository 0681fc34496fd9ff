"""One writer a key: a lease with an owner, an expiry and a fencing token.

The lease of a key is a row of small objects `leases/000001`, `leases/000002`, …: the number is the fencing token, the
highest one is in force, and taking over means creating the next number, which succeeds for exactly one caller. So
nothing rests on conditional overwrites, and each object has one writer: its owner, who changes it as a heartbeat.

Expiry is judged by the observer alone: a lease whose bytes stayed the same for its whole length *on the observer's own
clock* is over. No two clocks are ever compared, so machines may disagree about the time. The owner's clock counts time
spent stopped or suspended; an owner that could have been taken for dead looks again before it writes.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.stage import StopSignal
from tasks.store.roots import Root, StoreUnavailable

BEATS_PER_LEASE = 4
"""Heartbeats within the length of a lease: three may fail before anybody else may take over."""


class LeaseLost(Exception):
    """Another owner has this key now. What this attempt has not committed is of no use; it must stop writing."""


def boottime() -> float:
    """Seconds that also pass while this process is stopped or the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """The time and a sleep, replaceable so that tests of the policy take no time."""

    def __init__(self, now: Callable[[], float] = boottime, sleep: Callable[[float], Any] = time.sleep) -> None:
        self.now = now
        self.sleep = sleep


def process_identity(pid: int | None = None) -> str | None:
    """Machine, process-id namespace, pid and start time of a process; None where the system does not tell."""
    pid = pid or os.getpid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if status[0] in "ZX" else f"{boot} {space} {pid} {status[19]}"


def is_dead(holder: dict[str, Any]) -> bool:
    """True if the holder certainly ended: it ran on this machine, in this pid namespace, and is there no more."""
    theirs, mine = holder.get("process"), process_identity()
    if not theirs or not mine or theirs.split()[:2] != mine.split()[:2]:
        return False
    return process_identity(int(theirs.split()[2])) != theirs


class Lease:
    """The lease of the key that lies at `prefix` below `root`. Use `acquire`, then as a context manager."""

    def __init__(
        self, root: Root, prefix: str, *, seconds: float, clock: Clock | None = None, inputs: Sequence[str] = ()
    ) -> None:
        """inputs: `stage/key` of what the holder reads, so that housekeeping leaves those alone."""
        self.root, self.prefix, self.seconds = root, f"{prefix}/leases", seconds
        self.inputs = list(inputs)
        self.clock = clock or Clock()
        self.owner = uuid.uuid4().hex
        self.token = 0  # fencing token; 0: not held
        self.lost = False
        self._beats = 0
        self._acquired = self._confirmed = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, stop: StopSignal | None = None, waiting: Callable[[str], None] | None = None) -> int:
        """Wait until the lease is ours and return its token. `waiting` is told once whom we wait for.

        Raises Preempted through `stop`.
        """
        seen, since = b"", 0.0
        told = False
        while True:
            token, content = self._newest()
            if token == 0 or self._is_over(content):
                if self._take(token + 1):
                    return self.token
                continue
            if content != seen:
                seen, since = content, self.clock.now()
            holder = _parse(content)
            if self.clock.now() - since >= max(self.seconds, holder["seconds"]):
                if self._take(token + 1):
                    return self.token
                continue
            if waiting and not told:
                told = True
                waiting(f"process {holder['pid']} on {holder['host']} holds the lease of this key; waiting for it")
            if stop:
                stop.check()
            self.clock.sleep(min(1.0, self.seconds / (2 * BEATS_PER_LEASE)))

    def confirm(self, *, fresh: bool = False) -> None:
        """Raise LeaseLost unless the lease is still ours, by looking. Called before each write that others will see.

        `fresh`: a look within the last second, by a clock that also counts time spent stopped, is good enough.
        """
        if self.lost:
            raise LeaseLost(self._sentence())
        if fresh and self.clock.now() - self._confirmed < 1.0:
            return
        token, content = self._newest()
        if token != self.token or _parse(content)["owner"] != self.owner:
            self.lost = True
            raise LeaseLost(self._sentence())
        self._confirmed = self.clock.now()

    def beat(self) -> None:
        """One heartbeat: look first, so that an owner that slept does not write over its own end."""
        with self._lock:
            self.confirm()
            self._beats += 1
            self.root.write(self._name(self.token), self._content())
            self._confirmed = self.clock.now()

    def start(self, on_lost: Callable[[str], None]) -> None:
        """Beat from a thread until `release`; `on_lost` is called from it when another owner is found."""

        def beats() -> None:
            while not self._ended.wait(self.seconds / BEATS_PER_LEASE):
                try:
                    self.beat()
                except LeaseLost as lost:
                    on_lost(str(lost))
                    return
                except (StoreUnavailable, OSError):
                    continue  # the next beat tries again; whoever writes looks for itself

        self._thread = threading.Thread(target=beats, name="lease", daemon=True)
        self._thread.start()

    def held(self) -> float:
        """Seconds that the key has been held so far, by earlier owners too, as far as their last heartbeats tell."""
        earlier = 0.0
        for name in self.root.find(self.prefix):
            if name.isdigit() and int(name) < self.token:
                earlier += _parse(self.root.read(f"{self.prefix}/{name}"))["held"]
        return earlier + self.clock.now() - self._acquired

    def release(self, *, remove: bool = False) -> None:
        """Give the lease back: the heartbeat is stopped and joined first (KNOWN_FAILURES B25).

        The object stays, marked released, so that tokens keep growing; `remove` deletes it once the artifact exists.
        """
        self._ended.set()
        if self._thread:
            self._thread.join()
        if not self.token:
            return
        with suppress(LeaseLost, StoreUnavailable):  # what is not given back expires
            self.confirm()
            if remove:
                self.root.delete([f"{self.prefix}/{name}" for name in self.root.find(self.prefix)])
            else:
                self.root.write(self._name(self.token), self._content(released=True))
        self.token = 0

    def _take(self, token: int) -> bool:
        self.token, self._acquired = token, self.clock.now()
        try:
            self.root.create(self._name(token), self._content())
        except FileExistsError:
            self.token = 0
            return False
        self._confirmed = self.clock.now()
        return True

    def _newest(self) -> tuple[int, bytes]:
        """The token in force and its bytes; (0, b"") if nobody holds or held the key. A vanished one is released."""
        while True:
            tokens = [int(name) for name in self.root.find(self.prefix) if name.isdigit()]
            if not tokens:
                return 0, b""
            try:
                return max(tokens), self.root.read(self._name(max(tokens)))
            except FileNotFoundError:
                continue

    def _is_over(self, content: bytes) -> bool:
        holder = _parse(content)
        return bool(holder["released"]) or is_dead(holder)

    def _name(self, token: int) -> str:
        return f"{self.prefix}/{token:06d}"

    def _content(self, released: bool = False) -> bytes:
        return json.dumps(
            {
                "owner": self.owner,
                "beat": self._beats,
                "held": round(self.clock.now() - self._acquired, 3),
                "released": released,
                "seconds": self.seconds,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process": process_identity(),
                "inputs": self.inputs,
            }
        ).encode()

    def _sentence(self) -> str:
        return f"{self.prefix.removesuffix('/leases')} has another owner now: this attempt stops without writing."


def _parse(content: bytes) -> dict[str, Any]:
    """The holder that a lease names; an unreadable one names nobody, and ends like one whose owner died."""
    unknown = {"owner": "", "released": False, "seconds": 0.0, "held": 0.0, "host": "unknown", "pid": 0}
    try:
        return {**unknown, **json.loads(content)}
    except (ValueError, TypeError):
        return unknown


def is_leased(root: Root, prefix: str, *, max_age: float) -> bool:
    """True if somebody may be writing the key: an unreleased lease younger than `max_age` seconds by the root's clock.

    For housekeeping only, which can afford to be wrong on the safe side; owners judge expiry as described above.
    """
    holder, modified = _newest_holder(root, prefix)
    return bool(holder) and not (holder["released"] or is_dead(holder) or time.time() - modified > max_age)


def holder_inputs(root: Root, prefix: str) -> list[str]:
    """`stage/key` of what the newest holder of the key reads or read."""
    return list(_newest_holder(root, prefix)[0].get("inputs", []))


def heartbeat(root: Root, prefix: str) -> tuple[int, bytes]:
    """Token and bytes of the newest lease of the key, which change as long as its owner lives; (0, b"") without one."""
    newest = max((name for name in root.find(f"{prefix}/leases") if name.isdigit()), default="0")
    try:
        return int(newest), root.read(f"{prefix}/leases/{newest}") if int(newest) else b""
    except FileNotFoundError:
        return int(newest), b""


def _newest_holder(root: Root, prefix: str) -> tuple[dict[str, Any], float]:
    leases = {name: found for name, found in root.find(f"{prefix}/leases").items() if name.isdigit()}
    try:
        newest = max(leases, default="")
        return (_parse(root.read(f"{prefix}/leases/{newest}")), leases[newest].modified) if newest else ({}, 0.0)
    except FileNotFoundError:
        return {}, 0.0
