"""Jobs on several processes that stop when they are asked to and never outlive their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing.synchronize import Event
from typing import TypeVar

from tasks.stage import Preempted, StopSignal

Job = TypeVar("Job")
Result = TypeVar("Result")
ShouldStop = Callable[[], bool]

POLL_SECONDS = 0.2
_stop_event: Event | None = None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    function: Callable[[Job, ShouldStop], Result], jobs: Iterable[Job], processes: int, stop: StopSignal
) -> Iterator[Result]:
    """`function(job, should_stop)` of every job, in the order in which they end.

    Jobs are taken from the iterable a few ahead of the workers. With one process they run here; else in spawned
    ones (forking a process with threads of Prefect or Rust in it can hang). A function that finds `should_stop()`
    true raises Preempted. Raises what a job raises, Preempted once a stop was asked for, and BrokenProcessPool if a
    worker was killed, as for want of memory.
    """
    if processes <= 1:
        for job in jobs:
            stop.check()
            yield function(job, lambda: stop.requested)
        return
    context = multiprocessing.get_context("spawn")
    asked = context.Event()
    threads = max(1, cores() // processes)
    with ProcessPoolExecutor(processes, context, _prepare, (asked, threads)) as pool:
        try:
            source = iter(jobs)
            pending = {pool.submit(_call, function, job) for job in islice(source, 2 * processes)}
            while pending:
                done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                pending |= {pool.submit(_call, function, job) for job in islice(source, len(done))}
                stop.check()
                for future in done:
                    yield future.result()
        finally:
            asked.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _prepare(asked: Event, threads: int) -> None:
    """Runs first in each worker. Its parent alone decides when it ends: signals to the group are not its business."""
    global _stop_event
    _stop_event = asked
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[[Job, ShouldStop], Result], job: Job) -> Result:
    event = _stop_event
    should_stop = event.is_set if event is not None else lambda: False
    if should_stop():
        raise Preempted("asked to stop")
    return function(job, should_stop)
