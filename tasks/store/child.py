"""The process in which a stage runs: `python -m tasks.store.child`.

It reads one JSON line (stage, config, inputs, store) from standard input, which stays open as the control channel, and
exits with 0 done, 75 stopped after saving (run it again), 78 wrong config or input (do not), 1 anything else. A
process of its own frees the accelerator, takes signals by itself and cannot damage its parent.
"""

import errno
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from conf.errors import ConfigError
from tasks.stage import InputError, Preempted, StopSignal
from tasks.store.events import Events, to_descriptor, to_stderr
from tasks.store.lease import LeaseLost
from tasks.store.protocol import DONE, EVENTS_VARIABLE, FAILED, PREEMPTED, REFUSED
from tasks.store.roots import StoreUnavailable
from tasks.store.secrets import redact
from tasks.store.stopping import Stopper


def main() -> int:
    """Run the requested stage; returns the exit status."""
    request = json.loads(_read_line(0))
    descriptor = os.environ.get(EVENTS_VARIABLE)
    events = Events(to_descriptor(int(descriptor)) if descriptor else to_stderr)
    stop = StopSignal()

    def leave(reason: str) -> None:
        events.emit("stopped", message=f"stopped at once: {reason}; the last commit is what counts")
        os._exit(PREEMPTED)

    stopper = Stopper(stop, request["grace_seconds"], leave)
    stopper.listen(0)
    try:
        run(request, events, stop, stopper.hear, leave)
    except (Preempted, LeaseLost) as error:
        events.emit("stopped", message=f"stopped after {error}" if isinstance(error, Preempted) else str(error))
        return PREEMPTED
    except (ConfigError, InputError) as error:
        events.emit("refused", message=str(error))
        return REFUSED
    except StoreUnavailable as error:
        events.emit("failed", message=str(error))
        return FAILED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            where = f" at {error.filename}" if error.filename else ""
            events.emit("failed", message=f"the disk is full{where}: make room, then run the same command again")
            return FAILED
        sys.stderr.write(redact(traceback.format_exc()))
        events.emit("failed", message=f"{type(error).__name__}: {error}")
        return FAILED
    return DONE


def run(
    request: dict[str, Any],
    events: Events,
    stop: StopSignal,
    hear: Callable[[str], None],
    leave: Callable[[str], None],
) -> None:
    """Make the requested artifact. `hear` takes further reasons to stop, `leave` ends the process."""
    from conf.compose import validate
    from tasks import stage as stages
    from tasks.hosts import following
    from tasks.hosts import job as jobs
    from tasks.store import attempt, compile_cache, memory, preemption
    from tasks.store.store import Store

    store = Store(**request["store"])
    config = validate(request["config"])
    if config.hardware.preemption_notice:
        preemption.watch(config.hardware.preemption_notice, hear)
    inputs = {role: store.artifact(made["stage"], made["key"]) for role, made in request["inputs"].items()}
    stage = stages.declaration(request["stage"])
    job = jobs.find(config.hardware.hosts) if stage.all_hosts else None

    def make() -> None:
        what = (request["stage"], config, inputs, store)
        if job is None or job.leads:
            made = attempt.make(*what, events=events, stop=stop, run_info=request["run_info"], on_lost=leave, job=job)
        else:
            made = following.follow(*what, job, events=events, stop=stop, on_gone=leave)
        events.emit("done", stage=made.stage, key=made.key)

    if not stage.accelerator:
        return make()
    memory.keep_freed()
    with compile_cache.enabled(store, compile_cache.tag(config.hardware), events.log) as cache:
        try:
            make()
        finally:  # also of an attempt that was preempted
            if cache.hits + cache.misses:
                events.log(f"compilation cache: {cache.hits} programs reused, {cache.misses} compiled")
    return None


def _read_line(descriptor: int) -> bytes:
    """The first line, and not a byte more: what follows belongs to the control channel."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1)
        if not piece:
            raise SystemExit("python -m tasks.store.child reads a request from standard input; use run_stage.")
        line += piece
    return bytes(line)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of libraries must not keep a finished stage alive
