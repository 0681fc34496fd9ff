"""Known failures of Prefect that the flows can meet (B7 to B15); B1 to B6 are the store's, B8 is in test_server."""

import inspect
from pathlib import Path

import pytest
import yaml
from prefect import flow
from prefect.client.schemas.schedules import CronSchedule
from prefect.states import Completed

from conf.compose import compose
from flows.cycle import cycle
from flows.rehearsal import rehearsal
from flows.running import Runner
from tasks.store import Store

ROOT = Path(__file__).parents[2]
FLOWS = {"flows/cycle.py:cycle": cycle, "flows/rehearsal.py:rehearsal": rehearsal}
DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.fixture
def runner(tmp_path, prefect_server):
    words = [f"store.root={tmp_path}/store", f"store.cache_dir={tmp_path}/cache", "flow.retry_seconds=0"]
    config = compose([*words, f"report.title={tmp_path}/ledger"])
    return Runner(config, Store.from_config(config.store))


def test_b7_a_preempted_stage_is_an_exit_status_that_prefect_retries(runner):
    @flow(persist_result=False)
    def body():
        steady = runner("tests.flows.stages.steady", label="steady")
        runner("tests.flows.stages.shaky", label="shaky", steady=steady)

    body()
    assert runner.outcomes["shaky"].attempts == 3


def test_b11_a_run_state_says_nothing_about_what_is_done(runner):
    """A run that Prefect holds for completed made no artifact, so the stage runs."""

    @flow(persist_result=False)
    def claimed():
        return Completed(message="done, it says")

    @flow(persist_result=False)
    def body():
        runner("tests.flows.stages.steady", label="steady")

    claimed()
    body()
    assert runner.outcomes["steady"].how == "run"


def test_b12_stages_run_in_sequence_without_subflows():
    source = (ROOT / "flows" / "dag.py").read_text() + (ROOT / "flows" / "running.py").read_text()
    for word in (".submit(", ".map(", "run_deployment", "@flow"):
        assert word not in source


def test_b14_nothing_depends_on_hooks():
    for path in (ROOT / "flows").glob("*.py"):
        for hook in ("on_cancellation=", "on_crashed=", " on_failure=", "on_completion="):
            assert hook not in path.read_text()


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda entry: entry["name"])
def test_b15_every_deployment_loads_composes_and_is_scheduled_validly(deployment):
    target = FLOWS[deployment["entrypoint"]]
    parameters = deployment["parameters"]
    inspect.signature(target.fn).bind(**parameters)
    target.validate_parameters(parameters)
    missing = ["store.root=runs", "eval.bundle=b", "chat.data_dir=d"] if deployment["name"] == "d24" else []
    compose([*parameters["overrides"], *missing])
    for schedule in deployment.get("schedules", []):
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])


def test_b15_deployment_names_are_unique():
    names = [entry["name"] for entry in DEPLOYMENTS]
    assert len(names) == len(set(names))
