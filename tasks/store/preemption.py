"""The cloud's notice that this machine is about to be taken away.

Compute Engine answers `TRUE` at `…/computeMetadata/v1/instance/preempted` about thirty seconds before the end, with or
without a SIGTERM for this process. The address is a config field (`hardware.preemption_notice`), so tests serve it.
"""

import threading
import urllib.request
from collections.abc import Callable

POLL_SECONDS = 1.0
TIMEOUT_SECONDS = 2.0
REASON = "the cloud's preemption notice"


def is_preempted(address: str) -> bool:
    """Whether the notice is given; False also when nobody answers, as outside the cloud."""
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
            return reply.read(16).strip().upper() == b"TRUE"
    except OSError:
        return False


def watch(address: str, hear: Callable[[str], None], *, poll_seconds: float = POLL_SECONDS) -> threading.Event:
    """Call `hear` once, from a thread, when the notice is given. Set the returned event to stop watching."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(poll_seconds):
            if is_preempted(address):
                hear(REASON)
                return

    threading.Thread(target=poll, name="preemption", daemon=True).start()
    return ended
