"""A process in which JAX's distributed runtime and the stopper of a stage both want SIGTERM; run by test_stopping.

    python -m tests.faults.stop_order stopper-first|jax-first

Prints `ready`, then the reason to stop that it heard, or `nothing`.
"""

import os
import socket
import sys

import jax

from tasks.stage import StopSignal
from tasks.store.stopping import Stopper

SECONDS = 60.0


def main(order: str) -> None:
    """Set both up in the order wanted, and wait."""
    stop, heard = StopSignal(), []

    def hear(reason: str) -> None:
        heard.append(reason)
        genuine(reason)

    genuine, stop.request = stop.request, hear  # type: ignore[method-assign]

    def stopper() -> None:
        Stopper(stop, SECONDS, lambda reason: os._exit(3)).listen(0)

    def distributed() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        jax.config.update("jax_enable_preemption_service", False)  # as tasks.training.distributed does
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)

    for start in (stopper, distributed) if order == "stopper-first" else (distributed, stopper):
        start()
    print("ready", flush=True)
    stop.wait(SECONDS)
    print(*heard or ["nothing"], flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
