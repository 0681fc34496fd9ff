"""The record of a run: one line a step, continued exactly where a checkpoint left it."""

import json

from tasks.training.history import History


def test_lines_of_one_step_are_merged_and_come_in_order(tmp_path):
    history = History(tmp_path)
    history.add(0, val_bpb=3.0)
    history.add(1, loss=2.123456789, tokens=64, mfu=None)
    history.add(1, val_bpb=2.5)
    history.write()
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == [{"step": 0, "val_bpb": 3.0}, {"step": 1, "loss": 2.12345679, "tokens": 64, "val_bpb": 2.5}]


def test_a_resumed_run_goes_on_from_the_copy_of_its_checkpoint(tmp_path):
    first = History(tmp_path)
    first.add(1, loss=2.0)
    first.add_samples(1, [{"prompt": "a", "text": "b"}])
    first.write()
    again = History(tmp_path)
    assert again.get(1, "loss") == 2.0
    assert again.get(2, "loss") is None
    assert again.sampled(1)
    assert not again.sampled(2)
    again.add(2, loss=1.5)
    assert again.last("loss") == 1.5
    assert again.last("val_bpb") is None
    again.write()
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 2
    assert not list(tmp_path.glob("*.part"))
