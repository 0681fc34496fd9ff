"""A campaign: one undisturbed run, then runs of the same config that are disturbed again and again until they end.

Afterwards every artifact verifies, weights and scores are bit-identical to the undisturbed run's, and nothing lies in
the bucket that no manifest refers to.
"""

import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from conf.compose import compose
from tasks.store import Store, inventory
from tasks.store.compile_cache import FOLDER as COMPILE_CACHE
from tasks.store.gather import parallel
from tests.chaos.faults import Fault
from tests.chaos.running import Command, processes_with
from tests.fault_proxy import FaultProxy
from tests.gcs_server import GcsServer

LEASE_SECONDS = 4
PATIENCE_SECONDS = 300.0
"""Longest wait for a run to show life after a fault."""
RUN_SECONDS = 3600.0
"""Longest run."""
RESTARTS_WITHOUT_FAULT = 3
INTERVAL = 20
"""checkpoint.every_steps; a step takes some 20 ms, a save to the object store a second or more."""
SMALL = (
    *("data.world.documents=2400", "data.world.people=8", "data.world.questions=20", "data.world.val_documents=60"),
    *("data.world.conversations=120", "tokenizer.vocab_size=512"),
    *("scale.depth=1", "scale.aspect=32", "scale.head_dim=16", "scale.seq_len=64"),
    *("base.steps=200", "base.total_batch_tokens=512", "base.eval_every=100", "base.eval_tokens=1024"),
    *("base.sample_every=200", "base.log_every=1", f"base.checkpoint.every_steps={INTERVAL}"),
    *("sft.steps=40", "sft.eval_every=20", "sft.eval_tokens=1024", "sft.log_every=1"),
    f"sft.checkpoint.every_steps={INTERVAL}",
    *("eval.max_per_task=8", "chat.max_per_task=4", "chat.max_new_tokens=16", "prompts.max_new_tokens=16"),
    *("flow.retries=20", "flow.retry_seconds=0"),
)
MOMENTS = 40
"""A fault comes 1 to so many events after the one before, or after a restart; a run has about 350."""
MISSES = 10
"""So many faults may come too late to reach what they were meant for; each is repeated."""
MARK = "ENCORE_CHAOS"
"""Variable in the environment of every process of a campaign."""
EXACT = ("corpus", "tokenizer", "shards", "conversations")
"""Stages whose files must all be identical; of the others those in RESULTS (the rest holds times)."""
RESULTS = ("weights.safetensors", "optimizer.safetensors", "results.json", "model.safetensors")


@dataclass
class Row:
    """What one fault did."""

    fault: str
    stage: str
    step: int | None
    lost_steps: int | None
    seconds: float  # from the harm's end to the next sign of life


class Campaign:
    """Runs against one server and proxy.

    mode: "whole" or "front", as of tests.chaos.command. words: overrides beside SMALL. moments: see MOMENTS. shared:
    stages whose artifacts the disturbed runs are given.
    """

    def __init__(
        self,
        folder: Path,
        mode: str,
        seed: int,
        *,
        words: tuple[str, ...] = (),
        moments: int = MOMENTS,
        shared: tuple[str, ...] = (),
        overload_seconds: float = 20.0,
    ) -> None:
        self.folder, self.mode, self.overload_seconds = folder, mode, overload_seconds
        self.more_words, self.moments, self.shared = words, moments, (*shared, COMPILE_CACHE)
        self.random = random.Random(seed)
        self.rows: list[Row] = []
        self._missed = 0
        self.server = GcsServer(folder)
        self.proxy = FaultProxy(self.server.port)
        self.server.via = self.proxy.url
        self.server.start()
        self.bucket = self.server.new_bucket()
        environment = self.server.environment()
        self.environment = {**environment, MARK: str(folder)}
        direct = {"STORAGE_EMULATOR_HOST": self.server.url}  # the campaign itself goes around the proxy
        self._here = mock.patch.dict(os.environ, {**environment, **direct})
        self._here.start()
        self.run_name = ""
        self.command: Command

    def close(self) -> None:
        """End what is still there."""
        if hasattr(self, "command"):
            self.command.end()
        self.proxy.close()
        self.server.stop()
        self._here.stop()

    @property
    def cache(self) -> Path:
        """The local disk of the machine under chaos."""
        return self.folder / f"cache-{self.run_name}"

    @property
    def words(self) -> list[str]:
        """The overrides of the run."""
        return [
            *SMALL,
            *self.more_words,
            f'store.root="gs://{self.bucket}/{self.run_name}"',
            f"store.cache_dir={self.cache}",
            f"store.lease_seconds={LEASE_SECONDS}",
        ]

    @property
    def store(self) -> Store:
        """The run's store, seen by the campaign."""
        return Store.from_config(compose(self.words).store)

    def start(self) -> Command:
        """Start the command; it is the one that runs from now on."""
        self.command = Command([self.mode, *self.words], self.environment, self.folder / "output")
        return self.command

    def run(self, faults: list[Fault]) -> None:
        """One undisturbed run, and disturbed ones until all faults were injected and survived."""
        self.run_name = "undisturbed"
        self._undisturbed()
        expected = self._results()
        root = self.store.root
        given = {f"{folder}/{name}": folder for folder in self.shared for name in root.find(folder)}
        content = dict(zip(given, parallel(root.read, list(given)), strict=True))
        pending = list(faults)
        number = 0
        while pending:
            number += 1
            self.run_name = f"disturbed-{number}"
            root = self.store.root  # a bucket that has seen these programs before
            parallel(lambda name, root=root: root.write(name, content[name]), sorted(given, key=_manifests_last))
            self._disturbed(pending)
            self._check(expected)

    def _undisturbed(self) -> None:
        command = self.start()
        command.wait_for(lambda: False, RUN_SECONDS)
        assert command.code == 0, f"the undisturbed run ended with {command.code}; see {self._tail()}"

    def _disturbed(self, pending: list[Fault]) -> None:
        """One run to its end, taking faults from `pending` as it goes."""
        self.start()
        idle = 0
        while True:
            moment = len(self.command.events) + self.random.randint(1, self.moments)
            reached = self.command.wait_for(lambda m=moment: len(self.command.events) >= m, PATIENCE_SECONDS)
            if self.command.code == 0:
                return
            if reached and pending and self.command.code is None:
                stage = self.command.events[-1].get("stage", "")
                fitting = (fault for fault in pending if not fault.stages or stage in fault.stages)
                if fault := next(fitting, None):
                    pending.remove(fault)
                    if not self._inject(fault, stage):
                        pending.append(fault)
                    idle = 0
            elif self.command.code is not None:
                idle += 1
                assert idle <= RESTARTS_WITHOUT_FAULT, f"the command ends by itself again and again: {self._tail()}"
                self.start()
            elif not pending:
                self.command.wait_for(lambda: False, RUN_SECONDS)

    def _inject(self, fault: Fault, stage: str) -> bool:
        """Do harm and wait for work to go on; whether it was the harm that was meant, and has its row."""
        step = max(_steps(self.command.events, stage), default=None)
        before, begun = self.command, time.monotonic()
        fault.harm(self)
        ended = time.monotonic()
        done = self._sign_of_life(fault, stage, begun, ended)
        told = [event for event in before.events if event["time"] <= ended] + done[:-1]
        reached, again = max(_steps(told, stage), default=step), _steps(done[-1:], stage)
        lost = max(0, reached + 1 - again[0]) if reached and again and stage in ("base", "sft") else None
        if fault.proof and not any(fault.proof in event.get("message", "") for event in done):
            self._missed += 1
            assert self._missed <= MISSES, f"'{fault.name}' is not noticed: {self._tail()}"
            return False
        self.rows.append(Row(fault.name, stage, step, lost, done[-1]["time"] - ended))
        print(f"{len(self.rows)}: {self.rows[-1]}, then {done[-1]}", file=sys.stderr, flush=True)
        return True

    def _sign_of_life(self, fault: Fault, stage: str, begun: float, ended: float) -> list[dict[str, Any]]:
        """Events since the harm up to the first that shows work again; starts the command again if it ended.

        After a fault that `restarts`, only what comes from a stage or command started since it `begun` is work again.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self.command.code not in (None, 0):
                self.start()
            events = [e for e in self.command.events if e["time"] > ended]
            restarted = not fault.restarts or self.command.events[0]["time"] > begun
            for index, event in enumerate(events):
                restarted = restarted or event["kind"] in ("start", "restart")
                if restarted and event["kind"] in ("progress", "done"):
                    return events[: index + 1]
            if self.command.code == 0:
                return [{"kind": "done", "time": time.monotonic()}]
            time.sleep(0.05)
        raise AssertionError(f"nothing moves after '{fault.name}' in {stage}: {self._tail()}")

    def _results(self) -> dict[str, str]:
        """stage/key/name → sha256 of what must be identical."""
        return {
            f"{entry.where}/{name}": file.sha256
            for entry in inventory.scan(self.store)
            if entry.manifest
            for name, file in entry.manifest.files.items()
            if entry.stage in EXACT or name in RESULTS
        }

    def _check(self, expected: dict[str, str]) -> None:
        """The promises, after a disturbed run has ended."""
        entries = inventory.scan(self.store)
        assert {entry.state for entry in entries} == {"finished"}, [(e.where, e.state, e.problem) for e in entries]
        assert not [problem for entry in entries if (problem := inventory.verify(self.store, entry))]
        found = self._results()
        assert found == expected, sorted(name for name in expected if found.get(name) != expected[name])
        referred = {f"{e.where}/manifest.json" for e in entries}
        referred |= {f"{e.where}/{f.path}" for e in entries if e.manifest for f in e.manifest.files.values()}
        left = [n for n in self.store.root.find("") if n not in referred and not n.startswith(f"{COMPILE_CACHE}/")]
        assert not left, f"left in the bucket: {left}"
        deadline = time.monotonic() + 60
        while strays := processes_with(MARK, str(self.folder)):
            assert time.monotonic() < deadline, f"still running: {strays}"
            time.sleep(0.2)

    def _tail(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-2000:]


def _manifests_last(name: str) -> tuple[bool, str]:
    return name.endswith("/manifest.json"), name


def _steps(events: list[dict[str, Any]], stage: str) -> list[int]:
    """Steps that a stage told of."""
    return [e["step"] for e in events if e.get("stage") == stage and e["kind"] == "progress" and "step" in e]
