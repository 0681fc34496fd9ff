"""How a child process learns that it should stop, and how it makes sure that it does.

Three ways lead here: SIGTERM or SIGINT, a line on the control channel (the parent's way, which also works after a
library has taken over SIGTERM, as jax.distributed does: KNOWN_FAILURES B10), and the end of the control channel, which
is how a vanished parent shows. All are seen by a thread, so a main thread inside a long compilation does not delay
them. The first asks the stage to save and leave; a second one, or the deadline, ends the process at once.
"""

import os
import selectors
import signal
import threading
from collections.abc import Callable

from tasks.stage import StopSignal
from tasks.store.protocol import STOP_LINE


def watch(stop: StopSignal, control: int, *, grace_seconds: float, leave: Callable[[str], None]) -> None:
    """Start watching; call from the main thread. `control`: descriptor to read, `leave`: ends the process at once."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the wake-up descriptor is what reports it, from any state
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(
        target=_listen, args=(stop, heard, control, grace_seconds, leave), name="stopping", daemon=True
    ).start()


def _listen(stop: StopSignal, heard: int, control: int, grace_seconds: float, leave: Callable[[str], None]) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(heard, selectors.EVENT_READ)
        selector.register(control, selectors.EVENT_READ)
        while True:
            for event, _ in selector.select():
                data = os.read(event.fd, 4096)
                if event.fd == control and not data:
                    selector.unregister(control)
                    _silence()
                for reason in _reasons(data, event.fd == control):
                    if stop.requested:
                        leave(f"{reason} again")
                    stop.request(reason)
                    deadline = threading.Timer(
                        grace_seconds, leave, [f"not finished {grace_seconds:.0f} s after {reason}"]
                    )
                    deadline.daemon = True
                    deadline.start()


def _reasons(data: bytes, from_control: bool) -> list[str]:
    if not from_control:
        return [signal.Signals(number).name for number in data if number in (signal.SIGTERM, signal.SIGINT)]
    return ["a stop from the parent process"] * data.count(STOP_LINE) if data else ["the end of the parent process"]


def _silence() -> None:
    """Send output to nowhere: with the parent gone, printing would raise BrokenPipeError in the middle of a save."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
