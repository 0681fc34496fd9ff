"""How progress is shown: a `rich` bar on a terminal, a plain line now and then elsewhere.

Stages run in child processes and report events such as `{"step": 30, "total": 200, "loss": 3.1}`; what is drawn
from them is decided here alone.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.theme import Theme

PLAIN_SECONDS = 10.0


def details(event: Mapping[str, Any]) -> str:
    """The fields of an event that people read, with units: `loss 3.104 · 12.3k tok/s · MFU 31 %`."""
    parts = []
    for name, value in event.items():
        if name in ("step", "total", "unit", "final") or value is None:
            continue
        if name == "mfu":
            parts.append(f"MFU {100 * value:.0f} %")
        elif name.endswith("_per_s"):
            parts.append(f"{quantity(value)} {'tok' if name == 'tokens_per_s' else name[:-6].replace('_', ' ')}/s")
        elif isinstance(value, float):
            parts.append(f"{name.replace('_', ' ')} {value:.4g}")
        else:
            parts.append(f"{name.replace('_', ' ')} {value}")
    return " · ".join(parts)


def quantity(value: float) -> str:
    """`12345.0` → `12.3k`."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.1f}{suffix}"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def log_console() -> Console:
    """The console of Prefect's log lines: it prints them above a bar of its own, and would tear one of another."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            return handler.console
    return Console(file=sys.stderr)


class StageProgress:
    """Draws the events of one stage; use as a context manager around the stage."""

    def __init__(
        self,
        label: str,
        line: Callable[[str], None],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._line, self._clock = label, line, clock
        self._console = console or log_console()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = -PLAIN_SECONDS
        self._ended = False

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._console.push_theme(Theme())  # Prefect's console knows no styles but its own
            self._bar = Progress(
                TextColumn("{task.description:>14}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[details]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
            self._console.pop_theme()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one event. On a plain output at most one line in PLAIN_SECONDS, and always the last step."""
        step, total = event.get("step"), event.get("total")
        if self._bar:
            if self._task is None:
                self._task = self._bar.add_task(self._label, total=total, details="")
            self._bar.update(self._task, completed=step or 0, total=total, details=details(event))
            return
        last = step is not None and step == total and not self._ended
        self._ended = step is not None and step == total
        if last or self._clock() - self._last_line >= PLAIN_SECONDS:
            self._last_line = self._clock()
            place = f"{step}/{total} " if total else f"{step} " if step is not None else ""
            self._line(f"{place}{details(event)}".strip())
