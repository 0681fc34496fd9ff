"""Stages as Prefect tasks on a real server: reuse, retries, refusals."""

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from conf.compose import compose
from flows.running import Runner
from tasks.store import StageRefused, Store

STAGES = "tests.flows.stages"


@pytest.fixture
def runner(tmp_path, prefect_server):
    words = [f"store.root={tmp_path}/store", f"store.cache_dir={tmp_path}/cache", "flow.retry_seconds=0"]
    config = compose([*words, f"report.title={tmp_path}/ledger"])
    return lambda: Runner(config, Store.from_config(config.store))


def run(body, name="toy"):
    return flow(name=name, persist_result=False)(body)()


def test_a_stage_runs_once_and_is_reused_afterwards(runner):
    first, second = runner(), runner()
    run(lambda: first(f"{STAGES}.steady", label="steady"))
    run(lambda: second(f"{STAGES}.steady", label="steady"))
    assert (first.outcomes["steady"].how, first.outcomes["steady"].attempts) == ("run", 1)
    assert (second.outcomes["steady"].how, second.outcomes["steady"].attempts) == ("reused", 0)
    assert second.run_info()["stages"] == {"steady": "reused"}


def test_a_preemption_and_a_crash_are_retried(runner):
    toy = runner()

    def body():
        steady = toy(f"{STAGES}.steady", label="steady")
        toy(f"{STAGES}.shaky", label="shaky", steady=steady)

    run(body)
    assert toy.outcomes["shaky"].attempts == 3
    assert toy.outcomes["shaky"].artifact.manifest.inputs["steady"]["stage"] == "steady"


def test_a_refusal_is_not_retried_and_stays_one_sentence(runner):
    toy = runner()
    with pytest.raises(StageRefused, match=r"^texts/a\.txt is not UTF-8 at byte 12: convert it\.$"):
        run(lambda: toy(f"{STAGES}.refusing", label="refusing"), name="refused")
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs()
    assert [task.run_count for task in runs if task.name == "refusing"] == [1]


def test_task_runs_have_readable_names_and_stage_output_reaches_the_log(runner, caplog):
    toy = runner()
    run(lambda: toy(f"{STAGES}.steady", label="steady"))
    with get_client(sync_client=True) as client:
        assert "steady" in {task.name for task in client.read_task_runs()}
    assert "steady says hello" in caplog.text
    assert "2/2 loss 1.5" in caplog.text
