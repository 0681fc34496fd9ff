"""One writer a key, whatever clocks say and whoever sleeps."""

import os
import subprocess
import sys
import threading

import pytest

from tasks.stage import Preempted, StopSignal
from tasks.store import lease as leases
from tasks.store.lease import Lease, LeaseLost, is_leased


def lease(root, clock, seconds=60.0):
    return Lease(root, "toy/key", seconds=seconds, clock=clock)


@pytest.fixture(autouse=True)
def other_machine(request, monkeypatch):
    """Holders count as living on other machines, so that only time can end them."""
    if "same_machine" not in request.fixturenames:
        monkeypatch.setattr(leases, "process_identity", lambda pid=None: None)


@pytest.fixture
def same_machine():
    """Holders are what they are: processes of this machine."""


def test_tokens_grow_with_every_owner(root, clock):
    first, second = lease(root, clock), lease(root, clock)
    assert first.acquire() == 1
    first.release()
    assert second.acquire() == 2
    second.release(remove=True)
    assert root.find("toy/key") == {}


def test_a_silent_owner_is_replaced_after_the_whole_lease_and_finds_out(root, clock):
    frozen, next_owner = lease(root, clock), lease(root, clock)
    frozen.acquire()
    assert next_owner.acquire() == 2
    assert clock.time >= 60
    with pytest.raises(LeaseLost, match="has another owner"):
        frozen.confirm()
    with pytest.raises(LeaseLost):
        frozen.beat()
    frozen.release()
    next_owner.confirm()


def test_an_owner_that_beats_is_waited_for(root, clock):
    holder, waiter = lease(root, clock), lease(root, clock)
    holder.acquire()
    beats = 0

    def sleep(seconds):
        nonlocal beats
        clock.move(seconds)
        if clock.time > 15 * (beats + 1):
            beats += 1
            holder.beat() if beats < 20 else holder.release()

    clock.sleep = sleep
    told = []
    assert waiter.acquire(waiting=told.append) == 2
    assert beats == 20
    assert len(told) == 1


def test_clocks_that_differ_by_a_minute_change_nothing(root, clock):
    early, late = lease(root, clock), lease(root, type(clock)())
    late.clock.time = -60.0
    early.acquire()
    stop = StopSignal()
    waited = []

    def sleep(seconds):
        late.clock.move(seconds)
        waited.append(seconds)
        if sum(waited) > 50:
            stop.request("the test")

    late.clock.sleep = sleep
    with pytest.raises(Preempted):
        late.acquire(stop)
    early.confirm()


def test_only_one_of_many_takes_over(root, clock):
    dead = lease(root, clock)
    dead.acquire()
    clock.time = 0.0
    heirs = [lease(root, type(clock)()) for _ in range(6)]
    tokens = []
    stop = StopSignal()

    def inherit(heir):
        try:
            tokens.append(heir.acquire(stop))
        except Preempted:
            return
        stop.request("one has it")

    threads = [threading.Thread(target=inherit, args=(heir,)) for heir in heirs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [heir for heir in heirs if heir.token]
    for heir in sorted(held, key=lambda h: h.token)[:-1]:
        with pytest.raises(LeaseLost):
            heir.confirm()
    max(held, key=lambda h: h.token).confirm()
    assert len(set(tokens)) == len(tokens)


def test_a_lease_of_a_dead_process_on_this_machine_needs_no_waiting(root, clock, same_machine):
    code = (
        "import sys; from tasks.store.lease import Lease; from tasks.store.roots import open_root; "
        "Lease(open_root(sys.argv[1]), 'toy/key', seconds=60).acquire()"
    )
    subprocess.run([sys.executable, "-c", code, root.url], check=True, env=dict(os.environ, PYTHONPATH="."))
    assert lease(root, clock).acquire() == 2
    assert clock.time == 0.0


def test_a_fresh_look_is_not_repeated_but_sleep_makes_it_stale(root, clock):
    holder, heir = lease(root, clock), lease(root, type(clock)())
    holder.acquire()
    heir.acquire()
    holder.confirm(fresh=True)  # looked within the last second of its own clock
    clock.move(1.1)
    with pytest.raises(LeaseLost):
        holder.confirm(fresh=True)


def test_the_heartbeat_tells_who_lost(root):
    holder = Lease(root, "toy/key", seconds=0.4)
    holder.acquire()
    lost = threading.Event()
    holder.start(lambda sentence: lost.set())
    root.create("toy/key/leases/000002", holder._content().replace(holder.owner.encode(), b"somebody"))
    assert lost.wait(20)
    holder.release()
    assert set(root.find("toy/key/leases")) == {"000001", "000002"}


def test_an_unreadable_lease_ends_like_a_dead_owner(root, clock):
    root.create("toy/key/leases/000003", b"{trunc")
    assert lease(root, clock).acquire() == 4
    assert clock.time >= 60


def test_housekeeping_sees_who_is_at_work(root, clock):
    assert not is_leased(root, "toy/key", max_age=600)
    holder = lease(root, clock)
    holder.acquire()
    assert is_leased(root, "toy/key", max_age=600)
    holder.release()
    assert not is_leased(root, "toy/key", max_age=600)
