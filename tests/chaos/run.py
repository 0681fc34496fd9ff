"""`make chaos`: the whole cycle, disturbed at random moments. Prints a table and ends with `40 of 40`."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flows.server import prefect_api
from tests.chaos.campaign import INTERVAL, Campaign
from tests.chaos.faults import sequence


def main() -> int:
    """Run a campaign; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=["whole", "front"], default="whole", help="front: only up to base")
    options = parser.parse_args()
    begun = time.monotonic()
    with prefect_api() as url, tempfile.TemporaryDirectory(prefix="encore-chaos-") as folder:
        campaign = Campaign(Path(folder), options.mode, options.seed)
        campaign.environment["PREFECT_API_URL"] = url  # one server for all starts of the command
        problem = ""
        try:
            campaign.run(sequence(options.faults, campaign.random))
        except AssertionError as error:
            problem = str(error)
        finally:
            campaign.close()
    show(campaign)
    survived = max(0, len(campaign.rows) - bool(problem))
    print(f"{time.monotonic() - begun:.0f} s on {os.cpu_count()} cores")
    if problem:
        print(problem)
    print(f"{survived} of {options.faults}")
    return 0 if survived == options.faults else 1


def show(campaign: Campaign) -> None:
    """The table of faults."""
    table = Table("fault", "stage", "step", "steps lost", "recovery s", box=None)
    for row in campaign.rows:
        step, lost = (("" if value is None else str(value)) for value in (row.step, row.lost_steps))
        table.add_row(row.fault, row.stage, step, lost, f"{row.seconds:.1f}")
    Console(width=100).print(table)
    took = sorted(row.seconds for row in campaign.rows)
    for kills, title in ((True, "a kill"), (False, "another fault, which may also spoil a checkpoint or a save")):
        lost = [row.lost_steps for row in campaign.rows if row.fault.startswith("SIG") == kills]
        if known := [steps for steps in lost if steps is not None]:
            print(f"Steps lost to {title}: {sum(known) / len(known):.1f} on average, at most {max(known)}.")
    print(f"checkpoint.every_steps is {INTERVAL}.")
    if took:
        print(
            f"Seconds from the end of the harm to the next sign of work: median {took[len(took) // 2]:.1f}, "
            f"at most {took[-1]:.1f}."
        )


if __name__ == "__main__":
    sys.exit(main())
