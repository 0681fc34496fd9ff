"""The cycle: raw text to a judged chat model, every stage reused if it is there and retried if it was preempted.

    python -m flows.cycle scale=d4 data=files 'data.paths=[texts/*.jsonl.gz]' base.steps=200

Exit status: 0 done, 1 a stage failed, 2 the configuration or an input is wrong, 75 preempted, 130 Ctrl-C, 143 SIGTERM.
"""

import base64
import sys
from collections.abc import Sequence

from prefect import flow
from prefect.artifacts import create_image_artifact, create_link_artifact, create_markdown_artifact
from rich.console import Console
from rich.table import Table

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Config
from flows.command import failing_in_one_sentence, guarded, helped, leave
from flows.dag import dag
from flows.running import Outcome, Runner
from tasks.hosts import job
from tasks.stage import InputError
from tasks.store import Artifact, Store, missing


@flow(name="cycle", persist_result=False)
@failing_in_one_sentence
def cycle(overrides: list[str] | None = None) -> str:
    """Run the whole cycle under Hydra `overrides`; returns where the report is."""
    return str(run_cycle(compose(overrides or [])).path("report.html"))


def run_cycle(config: Config) -> Artifact:
    """Run every stage inside the current flow run, publish and show what came out; returns the report."""
    job.find(config.hardware.hosts)
    store = Store.from_config(config.store)
    store.check()
    if absent := missing(config):
        raise InputError(absent[0])
    runner = Runner(config, store)
    report = dag(runner)["report"]
    outcomes = list(runner.outcomes.values())
    publish(outcomes, report)
    show(outcomes, report)
    return report


def publish(outcomes: Sequence[Outcome], report: Artifact) -> None:
    """The flow run's artifacts in the Prefect UI: the stage table, the report, the curves."""
    rows = "\n".join(
        f"| {o.label} | `{o.artifact.key[:12]}` | {o.how} | {o.seconds:.1f} | {o.attempts} |" for o in outcomes
    )
    table = "| stage | key | this run | seconds | attempts |\n|---|---|---|---|---|\n" + rows
    create_markdown_artifact(key="stages", markdown=table, description="What ran and what was reused")
    create_link_artifact(
        key="report", link=report.path("report.html").resolve().as_uri(), link_text="report.html", description="Report"
    )
    picture = base64.b64encode(report.path("curves.png").read_bytes()).decode()
    create_image_artifact(key="curves", image_url=f"data:image/png;base64,{picture}", description="Loss and val bpb")


def show(outcomes: Sequence[Outcome], report: Artifact) -> None:
    """The end of a run on the terminal."""
    console = Console()
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("stage", "this run", "seconds", "attempts", "artifact"):
        table.add_column(heading, justify="right" if heading in ("seconds", "attempts") else "left")
    for o in outcomes:
        made = o.how == "run"
        table.add_row(
            o.label,
            o.how + (f" ({o.note})" if o.note else ""),
            f"{o.seconds:.1f}" if made else "",
            str(o.attempts) if made else "",
            o.artifact.where[:40],
        )
    console.print(table)
    headline = report.manifest.metrics["headline"]
    console.print(
        "  ".join(f"{name} {value:.3f}" for name, value in headline.items() if value is not None), soft_wrap=True
    )
    console.print(f"Report: {report.path('report.html')}", soft_wrap=True)


def main(words: Sequence[str]) -> int:
    """Run the cycle from the command line; a wrong word is found before the server starts."""
    if helped(words, __doc__):
        return 0
    try:
        compose(words)
    except ConfigError as error:
        return leave(2, str(error))
    return guarded(cycle, overrides=list(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
