"""A host that follows waits for the artifact: told by the manifest, patient as long as the first host lives."""

from dataclasses import replace

import pytest

from conf.schema import Hosts
from tasks.hosts.following import await_artifact
from tasks.hosts.job import Absent, Job
from tasks.stage import Preempted, StopSignal
from tasks.store import StagePreempted, Store, parent, run_inline, run_stage
from tasks.store.lease import Clock, Lease
from tests.tasks.store.conftest import TOY, composed, config  # noqa: F401

JOB = Job(("host-a", "host-b"), 1, "127.0.0.1", 8476)
HOUR = 3600.0
NAME = "toy"


class Waiting(Clock):
    """A clock that passes when it is slept on; at given times something happens."""

    def __init__(self, happens=()):
        self.time, self.happens = 0.0, dict(happens)
        super().__init__(now=lambda: self.time, sleep=self.pass_by)

    def pass_by(self, seconds):
        self.time += seconds
        for moment in sorted(self.happens):
            if moment <= self.time:
                self.happens.pop(moment)()


def awaiting(store, key, clock, **options):
    follower = Store(store.root.url, cache_dir=store.cache_dir, clock=clock)
    log = []
    try:
        return await_artifact(follower, NAME, key, JOB, HOUR, log.append, **options)
    finally:
        assert log == [f"waiting for {NAME}/{key}"[:36] + ", which process 0 (host-a) makes"]


def test_it_returns_when_the_manifest_is_there(store, config):  # noqa: F811
    key = store.locate(TOY, config(), {}).key
    clock = Waiting({100: lambda: run_inline(TOY, config(), {}, store)})
    assert awaiting(store, key, clock).manifest.key == key
    assert clock.time < 110


def test_it_waits_as_long_as_the_first_host_gives_signs_of_life_and_then_names_it(store, config):  # noqa: F811
    key = store.locate(TOY, config(), {}).key
    lease = Lease(store.root, f"{NAME}/{key}", seconds=60)
    lease.acquire()
    clock = Waiting({3000: lease.beat, 6000: lease.beat})
    with pytest.raises(Absent, match=r"process 0 \(host-a\) has shown no sign of work on .* for 60 minutes"):
        awaiting(store, key, clock)
    assert 6000 + HOUR < clock.time < 6000 + HOUR + 10


def test_it_leaves_to_join_when_the_first_host_begins_anew_and_when_it_is_stopped(store, config):  # noqa: F811
    key = store.locate(TOY, config(), {}).key
    lease = Lease(store.root, f"{NAME}/{key}", seconds=60)
    attempt = lease.acquire()

    def again():
        lease.release()
        Lease(store.root, f"{NAME}/{key}", seconds=60).acquire()

    with pytest.raises(Preempted, match=r"process 0 \(host-a\) began anew"):
        awaiting(store, key, Waiting({50: again}), attempt=attempt)
    stop = StopSignal()
    with pytest.raises(Preempted, match="SIGTERM"):
        awaiting(store, key, Waiting({50: lambda: stop.request("SIGTERM")}), stop=stop)


@pytest.fixture
def on_two_hosts(config):  # noqa: F811
    """The toy's config, for two hosts."""
    settings = config()
    hosts = Hosts(names=["host-a", "host-b"], alone={"TPU_PROCESS_BOUNDS": "1,1,1"})
    return replace(settings, hardware=replace(settings.hardware, hosts=hosts))


def test_a_stage_of_one_host_is_not_run_by_the_others(store, on_two_hosts, monkeypatch):
    monkeypatch.setenv("ENCORE_RANK", "1")
    follower = Store(store.root.url, cache_dir=store.cache_dir, clock=Waiting())
    with pytest.raises(StagePreempted, match=r"no sign of work .* The same command continues it"):
        run_stage(TOY, on_two_hosts, {}, follower)
    assert not follower.root.find(NAME)


def test_a_stage_of_one_host_is_told_by_its_environment_that_it_is_alone(store, on_two_hosts, monkeypatch):
    monkeypatch.setenv("ENCORE_RANK", "0")
    seen = {}

    def child(request, listener, env):
        seen.update(env)
        raise InterruptedError

    monkeypatch.setattr(parent, "Child", child)
    with pytest.raises(InterruptedError):
        run_stage(TOY, on_two_hosts, {}, store)
    assert seen["TPU_PROCESS_BOUNDS"] == "1,1,1"
