"""The whole cycle as a user runs it, at a size of seconds: run, reused, planned, repaired."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.tiny import words

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)
STAGES = {
    *("corpus", "tokenizer", "shards", "base", "conversations", "sft", "prompts", "report", "export"),
    *("core_base", "core_sft", "chat_base", "chat_sft"),
}


def encore(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("cycle")


@pytest.fixture(scope="module")
def first(place, tmp_path_factory):
    """The first run; the Prefect database is shared by all runs of this module."""
    os.environ["PREFECT_HOME"] = str(tmp_path_factory.mktemp("prefect"))
    finished = encore("flows.cycle", *words(place))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished


def plan(place, *more: str) -> dict[str, dict]:
    finished = encore("flows.plan", "--json", *words(place, *more))
    assert finished.returncode == 0, finished.stderr
    return {stage["label"]: stage for stage in json.loads(finished.stdout)["stages"]}


def would_run(place, *more: str) -> set[str]:
    return {label for label, stage in plan(place, *more).items() if stage["action"] == "run"}


def table(output: str) -> dict[str, str]:
    """label → "run" or "reused", from the table at the end of a run."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) > 2 and row[0] in STAGES and row[1] in ("run", "reused")}


def test_before_the_first_run_the_plan_runs_everything_and_writes_nothing(tmp_path):
    assert would_run(tmp_path) == STAGES
    assert not (tmp_path / "runs").exists()


def test_a_run_makes_every_stage_and_names_the_report(first):
    assert table(first.stdout) == dict.fromkeys(STAGES, "run")
    report = Path(first.stdout.strip().splitlines()[-1].removeprefix("Report: "))
    assert "<h2>Stages</h2>" in report.read_text()
    assert (report.parent / "report.md").exists()
    assert (report.parent / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_again_reuses_every_stage(first, place):
    assert would_run(place) == set()
    again = encore("flows.cycle", *words(place))
    assert again.returncode == 0, again.stderr
    assert table(again.stdout) == dict.fromkeys(STAGES, "reused")


def test_a_change_of_sft_leaves_tokenizer_shards_and_base(first, place):
    assert would_run(place, "sft.lr_scale=0.5") == {"sft", "core_sft", "chat_sft", "prompts", "export", "report"}


def test_another_price_writes_another_report_and_nothing_else(first, place):
    assert would_run(place, "hardware=v6e-8") == {"report"}


def test_a_deleted_artifact_is_made_again_alone(first, place):
    """The key of a stage is made from its config and inputs, so what follows still finds its own artifact."""
    key = plan(place)["conversations"]["key"]
    shutil.rmtree(place / "runs" / "conversations" / key)
    assert would_run(place) == {"conversations"}
    again = encore("flows.cycle", *words(place))
    assert again.returncode == 0, again.stderr
    assert table(again.stdout) == dict.fromkeys(STAGES, "reused") | {"conversations": "run"}


def test_a_wrong_word_ends_with_status_2_and_writes_nothing(tmp_path):
    for module in ("flows.cycle", "flows.plan", "flows.rehearsal"):
        finished = encore(module, f"store.root={tmp_path}/runs", "base.stepz=3")
        assert finished.returncode == 2
        assert finished.stderr.strip() == "encore: There is no field 'base.stepz'. Did you mean 'base.steps'?"
    assert not list(tmp_path.iterdir())
