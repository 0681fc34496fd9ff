"""The processes of a job meet in any order, and whoever is missing, wrong or gone is named."""

import socket
import threading

import pytest

from tasks.hosts.job import Absent, Job
from tasks.hosts.meeting import meet, met
from tasks.stage import InputError, Preempted, StopSignal

HOSTS = ("host-a", "host-b", "host-c")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def all_meet(jobs: list[Job], seconds: float) -> list[str]:
    """What each of some processes, here threads, was told."""
    told = [""] * len(jobs)

    def one(place: int) -> None:
        try:
            meet(jobs[place], seconds).close()
            told[place] = "all here"
        except (Absent, InputError) as error:
            told[place] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return told


def test_b52_the_first_process_alone_names_the_missing_one(port):
    jobs = [Job(HOSTS, rank, "127.0.0.1", port) for rank in (0, 1)]
    told = all_meet(jobs, seconds=1)
    assert len(set(told)) == 1
    assert told[0].startswith(f"Absent: process 2 (host-c) did not arrive at 127.0.0.1:{port} within 1 s")


def test_b52_a_process_whose_first_one_is_missing_names_it(port):
    with pytest.raises(Absent, match=rf"process 0 \(host-a\) did not answer at 127.0.0.1:{port} within 0.3 s"):
        meet(Job(HOSTS, 1, "127.0.0.1", port), seconds=0.3)


def test_all_of_them_meet_whatever_order_they_come_in(port):
    jobs = [Job(HOSTS, rank, "127.0.0.1", port) for rank in (2, 0, 1)]
    assert all_meet(jobs, seconds=20) == ["all here"] * 3


def test_a_process_of_another_job_or_with_anothers_rank_is_refused(port):
    mine = [Job(HOSTS[:2], 0, "127.0.0.1", port, key="base-1"), Job(HOSTS[:2], 1, "127.0.0.1", port, key="base-2")]
    for message in all_meet(mine, seconds=20):
        assert message.startswith("InputError:")
        assert "another job than process 0 (host-a)" in message
    twice = [Job(HOSTS, rank, "127.0.0.1", port) for rank in (0, 1, 1)]
    for message in all_meet(twice, seconds=20):
        assert "InputError: Two processes say that they are rank 1" in message


def test_strangers_on_the_port_are_ignored(port):
    def stranger() -> None:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"rank": null}\n', b""):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                caller.sendall(said)

    jobs = [Job(HOSTS[:2], rank, "127.0.0.1", port) for rank in (0, 1)]
    told: list[str] = []
    first = threading.Thread(target=lambda: told.extend(all_meet(jobs[:1], seconds=20)))
    first.start()
    for _ in range(100):
        try:
            stranger()
            break
        except ConnectionRefusedError:
            first.join(timeout=0.05)
    assert all_meet(jobs[1:], seconds=20) == ["all here"]
    first.join(timeout=20)
    assert told == ["all here"]


class Host(threading.Thread):
    """A process of a job, here a thread: it meets the others, does `work`, and remembers how it ended."""

    def __init__(self, jobs: list[Job], rank: int, work) -> None:
        super().__init__()
        self.job, self.work, self.told, self.gone = jobs[rank], work, "", threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with met(self.job, 20, 7, StopSignal(), self.leave) as meeting:
                self.work(meeting, self.gone)
                meeting.disperse()
            self.told = self.told or f"done with attempt {meeting.attempt}"
        except (Absent, InputError, ValueError) as error:
            self.told = f"{type(error).__name__}: {error}"

    def leave(self, sentence: str) -> None:
        self.told = sentence
        self.gone.set()


def ends_of(port: int, *works) -> list[str]:
    jobs = [Job(HOSTS, rank, "127.0.0.1", port, "base") for rank in range(3)]
    hosts = [Host(jobs, rank, work) for rank, work in enumerate(works)]
    for host in hosts:
        host.join(timeout=60)
    return [host.told for host in hosts]


def hang(meeting, gone):
    """What a collective does on a TPU when somebody is missing."""
    assert gone.wait(40)


def test_hosts_that_are_done_leave_without_a_word_and_know_the_first_ones_attempt(port):
    assert ends_of(port, *[lambda meeting, gone: None] * 3) == ["done with attempt 7"] * 3


def test_a_host_whose_connection_ends_is_named_to_all_though_they_hang(port):
    def die(meeting, gone):
        meeting.close()

    told = ends_of(port, hang, hang, die)
    assert told[:2] == ["process 2 (host-c) is gone"] * 2


def test_a_collective_that_fails_because_somebody_is_gone_becomes_his_name(port):
    def die(meeting, gone):
        meeting.close()

    def fail(meeting, gone):
        raise ValueError("Gloo AllGather failed: Connection reset by peer")

    told = ends_of(port, fail, die, fail)
    assert told[0] == told[2] == "Absent: process 1 (host-b) is gone"


def test_the_first_ones_own_error_is_told_to_the_others_in_its_words(port):
    def refuse(meeting, gone):
        raise InputError("The rows do not last.")

    told = ends_of(port, refuse, hang, hang)
    assert told == ["InputError: The rows do not last."] + ["process 0 (host-a) has left: The rows do not last."] * 2


def test_a_stop_ends_the_wait_for_the_others(port):
    stop = StopSignal()
    stop.request("SIGTERM")
    for rank in (0, 1):
        with pytest.raises(Preempted, match="SIGTERM"):
            meet(Job(HOSTS, rank, "127.0.0.1", port), seconds=20, stop=stop)


def test_a_port_that_is_taken_is_one_sentence(port):
    with socket.create_server(("", port)), pytest.raises(InputError, match=rf"Port {port} of process 0 \(host-a\)"):
        meet(Job(HOSTS, 0, "127.0.0.1", port), seconds=20)
