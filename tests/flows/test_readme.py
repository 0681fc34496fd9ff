"""Every command of the README works: run as written, or run smaller where it would take minutes."""

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from tests.flows.tiny import words

ROOT = Path(__file__).parents[2]
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for line in block.strip().splitlines()
]
BIN = Path(sys.executable).parent


def run(command: list[str], cwd: Path, timeout: float = 240, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{BIN}:{os.environ['PATH']}", **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)


def of(beginning: str) -> list[str]:
    found = [command for command in COMMANDS if command.startswith(beginning)]
    assert found, f"the README has no command '{beginning}…'"
    return found


def test_every_command_has_a_test_here():
    tested = ("make rehearse", "make test", "make setup", "python -m flows.", "python -m tasks.store ", "prefect ")
    assert [command for command in COMMANDS if not command.startswith(tested)] == []


@pytest.mark.parametrize(
    ("target", "does"),
    [
        ("rehearse", "python -m flows.rehearsal"),
        ("test", "python -m pytest"),
        ("setup EXTRA=tpu", "-r requirements/tpu.txt"),
    ],
)
def test_make_targets_do_what_the_readme_says(target, does):
    assert f"make {target}" in COMMANDS
    shown = run(["make", "-n", *target.split(), f"PYTHON={sys.executable}"], ROOT)
    assert shown.returncode == 0, shown.stderr
    assert does in shown.stdout


@pytest.mark.parametrize("command", of("python -m flows.plan"))
def test_plans_run_as_written(command, tmp_path):
    finished = run(shlex.split(command), tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "13 of 13 stages would run" in finished.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(600)
def test_own_text_trains_a_model_and_the_store_commands_look_at_it(tmp_path):
    [command] = of("python -m flows.cycle")
    (tmp_path / "texts").mkdir()
    for name in "ab":
        sentences = (f"Line {i} of {name} tells of the number {i * i}. " * 3 for i in range(300))
        text = "\n".join(f'{{"text": "{sentence}"}}' for sentence in sentences)
        (tmp_path / f"texts/{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    small = [word for word in words(tmp_path) if not word.startswith(("base.steps", "tokenizer"))]
    command = command.replace("base.steps=200", "base.steps=4")
    finished = run([*shlex.split(command), *small, "tokenizer.vocab_size=330"], tmp_path, timeout=500)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for command in of("python -m tasks.store"):
        looked = run(shlex.split(command), tmp_path)
        assert looked.returncode == 0, looked.stdout + looked.stderr
        assert looked.stdout.strip()


@pytest.mark.timeout(400)
def test_deployments_run_from_the_command_line(prefect_server, tmp_path):
    """Server from the fixture, pool as the worker command makes it; then deploy, run, and one worker that does it."""
    assert of("prefect server start")
    assert of("prefect worker start --pool encore --type process")
    server = {"PREFECT_API_URL": PREFECT_API_URL.value(), "PREFECT_HOME": str(tmp_path)}
    made = run(["prefect", "work-pool", "create", "encore", "--type", "process"], ROOT, **server)
    assert made.returncode == 0, made.stdout + made.stderr
    [deploy] = of("prefect deploy --all")
    deployed = run(shlex.split(deploy), ROOT, **server)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    [command] = of("prefect deployment run")
    wrong = command.replace("base.steps=50", "base.stepz=50")  # a run that is over in seconds, and says so
    started = run(shlex.split(wrong), ROOT, **server)
    assert started.returncode == 0, started.stdout + started.stderr
    worker = run(["prefect", "worker", "start", "--pool", "encore", "--run-once"], ROOT, **server)
    assert worker.returncode == 0, worker.stdout + worker.stderr
    with get_client(sync_client=True) as client:
        [state] = [flow_run.state for flow_run in client.read_flow_runs() if flow_run.deployment_id]
    assert state.name == "Failed"
    assert state.message == "There is no field 'base.stepz'. Did you mean 'base.steps'?"
