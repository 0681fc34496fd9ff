"""`make chaos` in short: the stages up to base, a few faults at seeded moments."""

import random

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.faults import FAULTS, sequence

SHORT = (
    *("scale.depth=1", "scale.aspect=32", "base.steps=12", "base.eval_every=12"),
    *("base.sample_every=100", "base.checkpoint.every_steps=3"),
)


@pytest.fixture
def campaign(tmp_path):
    made = Campaign(tmp_path, "front", seed=5, words=SHORT, overload_seconds=2.0)
    yield made
    made.close()


def test_a_disturbed_run_ends_like_an_undisturbed_one(campaign):
    campaign.run(3)
    assert len(campaign.rows) == 3
    assert all(row.lost_steps is None or row.lost_steps <= 2 * 3 for row in campaign.rows)


def test_a_sequence_holds_every_fault_equally_often():
    faults = sequence(40, random.Random(0))
    assert {fault.name: faults.count(fault) for fault in faults} == {fault.name: 4 for fault in FAULTS}
    assert faults == sequence(40, random.Random(0)) != sequence(40, random.Random(1))
