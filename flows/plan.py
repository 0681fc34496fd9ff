"""What the cycle would do, before anything runs or is rented: reuse, tokens, memory, hours, dollars.

    python -m flows.plan scale=d24 hardware=v6e-8

Reads the store and writes nothing. Keys follow from the config and from keys of inputs, so every stage's fate is
known although nothing has been made. `--json` prints the same for programs.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Config
from flows.command import helped, leave
from flows.dag import dag
from flows.estimate import Estimate, base_estimate, cautions
from tasks.stage import InputError
from tasks.store import Store, StoreUnavailable, missing


@dataclass(frozen=True)
class Planned:
    """One stage of the plan."""

    label: str
    key: str
    action: str  # "reuse" or "run"
    why: str
    estimate: Estimate


class Planner:
    """Stands where a runner of stages would, and only asks the store."""

    def __init__(self, config: Config, store: Store) -> None:
        self.config, self.store = config, store
        self.planned: list[Planned] = []

    def __call__(self, stage: str, *, label: str = "", **inputs: Planned) -> Planned:
        """Hit or miss of one stage, given what is planned for its inputs."""
        label = label or stage
        found = self.store.locate(stage, self.config, {role: made.key for role, made in inputs.items()})
        why = found.reason
        pending = [role for role, made in inputs.items() if made.action == "run"]
        if not found.hit and pending and "never made" not in why:
            why = f"{why}; waits for {', '.join(pending)}"
        estimate = Estimate() if found.hit else self.estimate(stage)
        planned = Planned(label, found.key, "reuse" if found.hit else "run", why, estimate)
        self.planned.append(planned)
        return planned

    def estimate(self, stage: str) -> Estimate:
        """Pretraining by arithmetic; other stages by how long they took here last time, if they ever ran."""
        if stage == "base":
            return base_estimate(self.config)
        seconds = last_seconds(self.store, stage)
        return Estimate() if seconds is None else Estimate(seconds=seconds, basis="last time")


def last_seconds(store: Store, stage: str) -> float | None:
    """Wall time of the newest artifact of a stage, or None."""
    manifests = [found for key in store.keys(stage) if (found := store.sound_manifest(stage, key))]
    return max(manifests, key=lambda m: m.finished_at).wall_seconds if manifests else None


def show(planned: Sequence[Planned], config: Config) -> None:
    """The plan as a table, and what to think of before renting."""
    console = Console()
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "action", "tokens", "GiB/chip", "hours", "US$"):
        table.add_column(heading, justify="left" if heading in ("stage", "action") else "right", no_wrap=True)
    table.add_column("why", overflow="fold")
    total = 0.0
    for p in planned:
        e = p.estimate
        dollars = e.dollars(config.hardware, config.report.spot)
        total += dollars or 0.0
        table.add_row(
            p.label,
            p.action,
            "" if e.tokens is None else f"{e.tokens:,}",
            "" if e.memory_gib is None else f"{e.memory_gib:.1f}",
            "" if e.seconds is None else f"{e.seconds / 3600:.2f}",
            "" if not dollars else f"{dollars:.2f}",
            p.why + (f" ({e.basis})" if e.basis else ""),
        )
    console.print(table)
    runs = sum(p.action == "run" for p in planned)
    kind = "spot" if config.report.spot else "on demand"
    hardware = config.hardware
    console.print(
        f"{runs} of {len(planned)} stages would run; US$ {total:.2f} on {hardware.name} "
        f"({kind}, price of {hardware.price_date}), for the stages whose time is known."
    )
    for line in missing(config) + cautions(config):
        console.print(f"caution: {line}", soft_wrap=True)


def main(words: Sequence[str]) -> int:
    """Print the plan for Hydra overrides; exit status 2 when the configuration is wrong."""
    if helped(words, __doc__):
        return 0
    as_json = "--json" in words
    try:
        config = compose([word for word in words if word != "--json"])
        planner = Planner(config, Store.from_config(config.store))
        dag(planner)
    except (ConfigError, InputError) as error:
        return leave(2, str(error))
    except StoreUnavailable as error:
        return leave(1, str(error))
    if as_json:
        rows = [
            asdict(p) | {"dollars": p.estimate.dollars(config.hardware, config.report.spot)} for p in planner.planned
        ]
        print(json.dumps({"stages": rows, "cautions": missing(config) + cautions(config)}, indent=2))
    else:
        show(planner.planned, config)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
