"""The cycle on the sample world, which then has to have learned it: a rehearsal that can fail.

    python -m flows.rehearsal            # what `make rehearse` and the nightly deployment run

The gates are far from what a working pipeline reaches and from what a broken one does (numbers over seeds 0, 1, 2 are
in tests/tasks/world/README.md), so a reused batch, a wrong template or a lost optimizer state ends here with status 1.
"""

import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect import flow

from conf.compose import compose
from conf.errors import ConfigError
from flows.command import GateFailed, failing_in_one_sentence, guarded, helped, leave
from flows.cycle import run_cycle


@dataclass(frozen=True)
class Gate:
    """A score and the range it must lie in."""

    score: str  # a name in the report's headline
    least: float = float("-inf")
    most: float = float("inf")

    def complaint(self, scores: Mapping[str, float | None]) -> str | None:
        """Why the gate is not passed, or None."""
        value = scores.get(self.score)
        if value is not None and self.least <= value <= self.most:
            return None
        bound = f"at least {self.least}" if self.most == float("inf") else f"at most {self.most}"
        return f"{self.score} is {'missing' if value is None else f'{value:.3f}'}, it must be {bound}"


GATES = (
    Gate("CORE, base", least=0.5),
    Gate("answers right, SFT", least=0.9),
    Gate("answers right, base", most=0.2),
)


@flow(name="rehearsal", persist_result=False)
@failing_in_one_sentence
def rehearsal(overrides: list[str] | None = None, new_world: bool = False) -> str:
    """Run the cycle at rehearsal scale and hold its scores against the gates; returns where the report is.

    `new_world` takes the day's number as the seed: a nightly rehearsal that found last night's artifacts would test
    nothing.
    """
    seed = [f"seed={datetime.datetime.now(datetime.UTC).toordinal()}"] if new_world else []
    report = run_cycle(compose(["name=rehearsal", *seed, *(overrides or [])]))
    complaints = [text for gate in GATES if (text := gate.complaint(report.manifest.metrics["headline"]))]
    if complaints:
        raise GateFailed(f"The rehearsal failed: {'; '.join(complaints)}. See {report.path('report.html')}.")
    return str(report.path("report.html"))


def main(words: Sequence[str]) -> int:
    """Run the rehearsal from the command line; exit statuses as of `flows.cycle`, 1 when a gate is not passed."""
    if helped(words, __doc__):
        return 0
    try:
        compose(words)
    except ConfigError as error:
        return leave(2, str(error))
    return guarded(rehearsal, overrides=list(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
