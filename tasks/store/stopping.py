"""How a child process learns that it should stop, and how it makes sure that it does.

SIGTERM or SIGINT; a line on the control channel, which is the parent's way and also works after a library has taken
over SIGTERM, as jax.distributed does (KNOWN_FAILURES B10); the end of the control channel, which is how a vanished
parent shows; the cloud's preemption notice. All are seen by threads, so a main thread inside a long compilation does
not delay them. The first asks the stage to save and leave. The same one again, or the deadline, ends the process.
"""

import os
import selectors
import signal
import threading
from collections.abc import Callable

from tasks.stage import StopSignal
from tasks.store.protocol import STOP_LINE


class Stopper:
    """Turns what is heard into a request to `stop`, and into `leave`, which ends the process at once."""

    def __init__(self, stop: StopSignal, grace_seconds: float, leave: Callable[[str], None]) -> None:
        self._stop, self._grace, self._leave = stop, grace_seconds, leave
        self._heard: set[str] = set()

    def hear(self, reason: str) -> None:
        """A reason to stop. One event may be told in several ways, so only the same way again means "at once"."""
        if reason in self._heard:
            self._leave(f"{reason} again")
        self._heard.add(reason)
        if self._stop.requested:
            return
        self._stop.request(reason)
        deadline = threading.Timer(self._grace, self._leave, [f"not finished {self._grace:.0f} s after {reason}"])
        deadline.daemon = True
        deadline.start()

    def listen(self, control: int) -> None:
        """Listen to signals and to the descriptor `control`, from a thread. Call from the main thread."""
        heard, told = os.pipe()
        os.set_blocking(told, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the wake-up descriptor reports it, whatever Python is doing
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(heard, control), name="stopping", daemon=True).start()

    def _listen(self, signals: int, control: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(signals, selectors.EVENT_READ)
            selector.register(control, selectors.EVENT_READ)
            while True:
                for event, _ in selector.select():
                    data = os.read(event.fd, 4096)
                    if event.fd == signals:
                        for number in data:
                            if number in (signal.SIGTERM, signal.SIGINT):
                                self.hear(signal.Signals(number).name)
                    elif data:
                        for _ in range(data.count(STOP_LINE)):
                            self.hear("a stop from the parent process")
                    else:
                        selector.unregister(control)
                        _silence()
                        self.hear("the end of the parent process")


def _silence() -> None:
    """Send output to nowhere: with the parent gone, printing would raise BrokenPipeError in the middle of a save."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
