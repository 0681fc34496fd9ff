"""What progress looks like."""

import io
import logging

from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console
from rich.theme import Theme

from flows.console import PLAIN_SECONDS, StageProgress, details, log_console, quantity


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_details_name_units():
    event = {
        "step": 3,
        "total": 9,
        "loss": 3.10444,
        "tokens_per_s": 12345.0,
        "mfu": 0.312,
        "eta": "4 min",
        "val_bpb": None,
    }
    assert details(event) == "loss 3.104 · 12.3k tok/s · MFU 31 % · eta 4 min"


def test_quantities_are_short():
    assert [quantity(x) for x in (0.25, 42.0, 1234.0, 5.6e6, 7.89e9)] == ["0.25", "42", "1.2k", "5.6M", "7.9G"]


def test_without_a_terminal_a_line_comes_every_few_seconds_and_for_the_last_step():
    lines, clock = [], Clock()
    with StageProgress("base", lines.append, Console(file=io.StringIO()), clock) as progress:
        for step in range(1, 31):
            clock.now += PLAIN_SECONDS / 10
            progress({"step": step, "total": 30, "loss": 1.0})
    assert [line.split()[0] for line in lines] == ["1/30", "11/30", "21/30", "30/30"]


def test_on_a_terminal_a_bar_is_drawn_and_no_lines():
    lines, screen = [], io.StringIO()
    with StageProgress("base", lines.append, Console(file=screen, force_terminal=True, width=100)) as progress:
        progress({"step": 15, "total": 30, "loss": 1.25})
    assert not lines
    assert "15/30" in screen.getvalue()
    assert "loss 1.25" in screen.getvalue()


def test_log_lines_are_printed_above_the_bar():
    screen = io.StringIO()
    handler = PrefectConsoleHandler(stream=screen)
    handler.console = Console(file=screen, force_terminal=True, width=100, theme=Theme(inherit=False))
    root = logging.getLogger()
    before, root.handlers = root.handlers, [handler]
    try:
        assert log_console() is handler.console
        with StageProgress("base", print) as progress:
            progress({"step": 15, "total": 30})
            handler.emit(logging.LogRecord("stage", logging.INFO, "", 0, "a line of the stage", None, None))
    finally:
        root.handlers = before
    # The bar is wiped, the line takes its place, the bar comes again below.
    assert "\r\x1b[2Ka line of the stage" in screen.getvalue()
    assert "15/30" in screen.getvalue().split("a line of the stage")[1]


def test_the_end_of_a_stage_is_one_line_however_many_events_report_it():
    lines, clock = [], Clock()
    with StageProgress("core", lines.append, Console(file=io.StringIO()), clock) as progress:
        for _ in range(5):
            progress({"step": 16, "total": 16})
    assert lines == ["16/16"]
