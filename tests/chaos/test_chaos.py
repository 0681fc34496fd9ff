"""`make chaos` in short: the stages up to base, a few faults at seeded moments."""

import random

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.faults import FAULTS, sequence


@pytest.fixture
def campaign(tmp_path):
    made = Campaign(tmp_path, "front", seed=5, overload_seconds=2.0)
    yield made
    made.close()


@pytest.mark.slow
def test_a_disturbed_run_ends_like_an_undisturbed_one(campaign):
    campaign.run(3)
    assert len(campaign.rows) == 3
    assert all(row.lost_steps is None or row.lost_steps <= 2 * 20 for row in campaign.rows)


def test_a_sequence_holds_every_fault_equally_often():
    faults = sequence(40, random.Random(0))
    assert {fault.name: faults.count(fault) for fault in faults} == {fault.name: 4 for fault in FAULTS}
    assert faults == sequence(40, random.Random(0)) != sequence(40, random.Random(1))
