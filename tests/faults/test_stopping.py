"""Known failures of stopping: writers that outlive their flow (B9), and who owns SIGTERM (B10)."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from prefect import flow

from conf.compose import compose
from flows.running import Runner
from tasks.store import Store, run_inline
from tasks.store.lease import LeaseLost
from tasks.store.parent import _running
from tasks.store.sources import PROJECT
from tests.tasks.store import toy
from tests.tasks.store.conftest import ManualClock

TOY = "tests.tasks.store.toy"


class Crash(BaseException):
    """What ends a flow from outside, as Prefect's TerminationSignal does."""


def test_b9_when_the_flow_has_crashed_nothing_of_its_stage_goes_on_to_write(tmp_path, prefect_server, monkeypatch):
    """The stage is called directly and not submitted to a thread: it has saved and ended before the flow is Crashed."""
    words = [f"store.root={tmp_path}/store", f"store.cache_dir={tmp_path}/cache", "flow.retries=0"]
    config = compose(words)
    config = replace(config, data=replace(config.data, paths=["wait:2", f"marks:{tmp_path}"]))
    runner = Runner(config, Store.from_config(config.store))

    def crash(progress, event):
        if event.get("step") == 3:
            raise Crash

    monkeypatch.setattr("flows.running.StageProgress.__call__", crash)

    @flow(persist_result=False)
    def body():
        runner(TOY, label="toy")

    with pytest.raises(Crash):
        body()
    assert not _running
    left = runner.store.root.find("toy")
    assert not [name for name in left if name.endswith("manifest.json")]
    assert [name.endswith("parts/2.txt") for name in left].count(True) == 1  # what it saved on the way out
    monkeypatch.undo()
    assert body(return_state=True).is_completed()
    assert runner.outcomes["toy"].artifact.manifest.attempts == 2


@pytest.mark.parametrize("taken", ["by an heir", "by an heir that finished", "by release"])
def test_b9_a_late_writer_without_a_live_lease_commits_nothing(tmp_path, monkeypatch, taken):
    """A thread that works on after its flow is over, as a submitted task does."""
    config = compose([])
    store = Store(tmp_path / "store", cache_dir=tmp_path / "cache", lease_seconds=3600)
    genuine, working, over = toy.run, threading.Event(), threading.Event()
    outcome: list[BaseException] = []
    leases = []

    def slow(view, inputs, out):
        if working.is_set():
            return genuine(view, inputs, out)
        leases.append(out._lease)
        working.set()
        over.wait(60)
        return genuine(view, inputs, out)

    def late():
        try:
            run_inline(TOY, config, {}, store)
        except BaseException as error:
            outcome.append(error)

    monkeypatch.setattr(toy, "run", slow)
    thread = threading.Thread(target=late)
    thread.start()
    assert working.wait(60)
    if taken == "by release":
        leases[0].release()
    else:
        take_over(store, monkeypatch)
        if taken == "by an heir that finished":
            made = run_inline(TOY, config, {}, Store(store.root.url, cache_dir=tmp_path / "cache"))
    leases[0]._confirmed -= 2  # its last look is longer ago than an heir needs to see that it is silent
    before = contents(store)
    over.set()
    thread.join(60)
    assert [type(error) for error in outcome] == [LeaseLost]
    assert contents(store) == before
    if taken == "by an heir that finished":
        made.verify()


def take_over(store, monkeypatch):
    """What an heir finds whose clock has seen the lease of the late writer unchanged for its whole length."""
    [name] = [name for name in store.root.find("") if "/leases/" in name]
    stale = store.root.read(name).replace(b'"seconds": 3600', b'"seconds": 0')
    store.root.write(name, stale)
    from tasks.store.lease import Lease

    heir = Lease(store.root, name.partition("/leases/")[0], seconds=0.0, clock=ManualClock())
    assert heir.acquire() == 2
    heir.release()


def contents(store):
    return {name: store.root.read(name) for name in store.root.find("")}


@pytest.mark.parametrize("order", ["stopper-first", "jax-first"])
@pytest.mark.parametrize("way", ["a stop from the parent process", "SIGTERM"])
def test_b10_a_stage_hears_the_stop_whichever_of_it_and_jax_came_last(order, way):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.stop_order", order],
        cwd=PROJECT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.write("stop\n")
            process.stdin.flush()
        assert process.stdout.readline() == f"{way}\n"
    finally:
        process.kill()
        process.wait()
