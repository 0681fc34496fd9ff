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
from tests.chaos.campaign import Campaign


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
            campaign.run(options.faults)
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


if __name__ == "__main__":
    sys.exit(main())
