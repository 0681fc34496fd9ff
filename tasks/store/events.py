"""What a stage tells while it runs: one JSON object a line, from the child process to its parent."""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from tasks.store.secrets import redact_json

Event = dict[str, Any]
"""{"kind": "progress" | "log" | "output" | "done" | "stopped" | "refused" | "failed", …}"""

Listener = Callable[[Event], None]


class Events:
    """Hands events to a listener, secrets masked; never raises because of a listener that went away."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def progress(self, **fields: Any) -> None:
        """Where the stage is, such as progress(step=3, total=100, loss=2.1)."""
        self.emit("progress", **fields)

    def log(self, message: str) -> None:
        """One line for the log."""
        self.emit("log", message=message)

    def emit(self, kind: str, **fields: Any) -> None:
        """An event of this kind. Listeners run in the calling thread."""
        self._listener(redact_json({"kind": kind, **fields}))


def to_descriptor(descriptor: int) -> Listener:
    """A listener that writes lines to a file descriptor; once its reader is gone, events are dropped."""
    lock = threading.Lock()

    def write(event: Event) -> None:
        line = (json.dumps(event, default=float) + "\n").encode()
        try:
            with lock:
                while line:
                    line = line[os.write(descriptor, line) :]
        except OSError:  # the parent is gone; the stage is told by its control channel
            pass

    return write


def to_stderr(event: Event) -> None:
    """A listener for a person: one readable line."""
    kind = event["kind"]
    fields = {name: value for name, value in event.items() if name != "kind"}
    text = fields.get("message") or "  ".join(f"{name}={_short(value)}" for name, value in fields.items())
    print(f"{kind:>9}  {text}", file=sys.stderr, flush=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
