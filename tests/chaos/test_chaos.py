"""`make chaos` in short: the stages up to base, one fault of each sort at seeded moments."""

import random

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.faults import FAULTS, sequence

SHORT = (
    *("data.world.documents=700", "base.steps=60", "base.eval_every=30", "base.sample_every=60"),
    "base.checkpoint.every_steps=10",
)
CHOSEN = ("SIGTERM to the stage", "connection cut in mid-upload", "newest checkpoint damaged")
"""One that is told beforehand, one of the network, one that is not told and leaves damage."""


@pytest.fixture
def campaign(tmp_path):
    made = Campaign(tmp_path, "front", seed=5, words=SHORT, moments=15, shared=("corpus", "tokenizer", "shards"))
    yield made
    made.close()


@pytest.mark.timeout(900)
def test_a_disturbed_run_ends_like_an_undisturbed_one(campaign):
    """The campaign compares bits, verifies checksums, and looks for leftovers in the bucket and among processes."""
    campaign.run([fault for name in CHOSEN for fault in FAULTS if fault.name == name])
    assert [row.fault for row in campaign.rows] == list(CHOSEN)
    assert [row.stage for row in campaign.rows] == ["base"] * 3
    assert campaign.rows[0].lost_steps == 0


def test_a_sequence_holds_every_fault_equally_often():
    faults = sequence(40, random.Random(0))
    assert {fault.name: faults.count(fault) for fault in faults} == {fault.name: 4 for fault in FAULTS}
    assert faults == sequence(40, random.Random(0)) != sequence(40, random.Random(1))
