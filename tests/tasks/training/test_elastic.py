"""A run that moves from 8 devices to 4, 2 and 1, and over several mesh shapes, sees the same rows and loses nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from tasks import base
from tasks.training.history import History
from tasks.training.loop import Loop
from tests.tasks.training.attempts import Attempt
from tests.tasks.training.tiny import BASE_INPUTS, ELASTIC, config

REPOSITORY = Path(__file__).parents[3]
LEGS = ["8x1x1:3", "2x1x2:7", "1x2x1:11"]


def losses(history):
    return [history.get(step, "loss") for step in range(1, 17)]


def test_a_run_preempted_on_8_devices_goes_on_with_4_2_and_1(tiny, tmp_path):
    inputs = {role: tiny[1][role] for role in BASE_INPUTS}
    plan = base.plan_run(config(*ELASTIC), inputs)
    _, unmoved, _ = Loop(plan, Attempt(tmp_path / "unmoved").out).run(lambda: base.start(plan, 0))

    made = [sys.executable, "-m", "tests.tasks.training.elastic_run", tiny[0].root.directory.parent, tmp_path / "moved"]
    subprocess.run([*map(str, made), *LEGS], cwd=REPOSITORY, check=True, timeout=280)
    last = Attempt(tmp_path / "moved")
    _, moved, _ = Loop(plan, last.out).run(lambda: base.start(plan, 0))

    assert last.lease.token == 4
    assert any(line.startswith("Continuing from step") for line in last.lines)
    assert isinstance(moved, History)
    assert None not in losses(moved)
    assert np.allclose(losses(moved), losses(unmoved), rtol=0, atol=1e-5)
    assert abs(moved.last("val_bpb") - unmoved.last("val_bpb")) < 1e-5
