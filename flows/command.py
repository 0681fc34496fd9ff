"""A flow as a command: an embedded server around it, one sentence and an exit status for every expected end."""

import functools
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

from prefect.client.schemas.objects import State
from prefect.logging.handlers import APILogHandler
from prefect.states import Failed

from conf.errors import ConfigError
from flows.server import ServerError, prefect_api
from tasks.stage import InputError
from tasks.store import StageEnded, StagePreempted, StageRefused, StoreUnavailable

CONTINUE = "Run the same command to continue."


class GateFailed(Exception):
    """A run that finished with scores that a working pipeline does not have."""


EXPECTED = (ConfigError, InputError, StageEnded, StoreUnavailable, GateFailed)

P = ParamSpec("P")
R = TypeVar("R")


class Terminated(BaseException):
    """SIGTERM, as an exception, so that what must be ended is ended on the way out."""


def failing_in_one_sentence(body: Callable[P, R]) -> Callable[P, R | State[Any]]:
    """A flow's body whose expected errors end the run as Failed with their sentence; a traceback is for bugs."""

    @functools.wraps(body)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | State[Any]:
        try:
            return body(*args, **kwargs)
        except EXPECTED as error:
            return Failed(message=str(error), data=error)

    return wrapper


def guarded(run: Callable[..., Any], **parameters: Any) -> int:
    """Call a flow beside a Prefect API and give the exit status; see `flows.cycle` for the list of them.

    Prefect's own SIGTERM handling restores the handler it found and raises the signal again: the one set here.
    """
    signal.signal(signal.SIGTERM, terminate)
    try:
        with prefect_api():
            try:
                run(**parameters)
            finally:
                APILogHandler().flush()
    except StagePreempted as error:
        return leave(75, f"Preempted: {error}")
    except (ConfigError, InputError, StageRefused) as error:
        return leave(2, str(error))
    except (StageEnded, StoreUnavailable, ServerError, GateFailed) as error:
        return leave(1, str(error))
    except KeyboardInterrupt:
        return leave(130, f"Stopped by Ctrl-C. {CONTINUE}")
    except Terminated:
        return leave(143, f"Stopped by SIGTERM. {CONTINUE}")
    return 0


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM."""
    raise Terminated


def helped(words: Sequence[str], usage: str | None) -> bool:
    """Print how the command is used, if that is what was asked."""
    if not {"-h", "--help"} & set(words):
        return False
    print((usage or "").strip())
    return True


def leave(status: int, sentence: str) -> int:
    """Print why on stderr and give the exit status."""
    print(f"encore: {sentence}", file=sys.stderr, flush=True)
    return status
