"""From nothing to an artifact, over attempts that end in every way, on disk and in a bucket."""

import json
import os
from pathlib import Path

import pytest

from tasks.stage import Preempted, StopSignal
from tasks.store import Damaged, LeaseLost, Store, run_inline
from tasks.store import lease as leases
from tests.tasks.store.conftest import TOY
from tests.tasks.store.toy import PARTS


@pytest.fixture
def store(root_url, tmp_path):
    return Store(root_url, cache_dir=tmp_path / "cache", lease_seconds=5)


def interrupted(store, config, words, index=2):
    """Run the toy stage until part `index`, then stop it; returns the messages."""
    stop = StopSignal()
    seen = []

    def listen(event):
        seen.append(event)
        if event["kind"] == "progress" and event["step"] == index + 1:
            stop.request("the test")

    with pytest.raises(Preempted):
        run_inline(TOY, config, {}, store, on_event=listen, stop=stop)
    return seen


def objects(store):
    return {name for name in store.root.find("") if not name.startswith(".work")}


def test_a_finished_artifact_is_its_manifest_and_its_files_and_nothing_else(store, config):
    made = run_inline(TOY, config(seed=3), {}, store)
    files = {f"parts/{i}.txt" for i in range(PARTS)} | {"whole.txt"}
    assert objects(store) == {f"{made.where}/{name}" for name in files | {"manifest.json"}}
    assert set(made.names()) == files
    assert made.names("parts/*") == sorted(files - {"whole.txt"})
    assert made.path("whole.txt").read_text().startswith("3 0\n")
    assert (made.path() / "parts/1.txt").read_text() == (made.path("parts") / "1.txt").read_text()
    assert made.manifest.metrics == {"parts": PARTS, "seed": 3}
    assert made.manifest.attempts == 1
    made.verify()
    with pytest.raises(KeyError, match="has no file 'nothing'"):
        made.path("nothing")


def test_the_manifest_says_where_an_artifact_comes_from(store, config):
    source = run_inline(TOY, config(seed=1), {}, store)
    made = run_inline(TOY, config(seed=2), {"source": source}, store, run_info={"attempt": "of the test"})
    plain = json.loads(store.root.read(f"{made.where}/manifest.json"))
    assert plain["inputs"] == {"source": {"stage": "toy", "key": source.key}}
    assert plain["config"] == {"name": config().name, "seed": 2}
    assert plain["run_info"] == {"attempt": "of the test"}
    assert "tests/tasks/store/toy.py" in plain["sources"]
    assert plain["packages"]["jax"]
    assert plain["files"]["whole.txt"]["size"] == 1000 * 4 * PARTS
    assert made.manifest.recomputed_key() == made.key


def test_the_next_attempt_keeps_what_was_published_and_leaves_no_trace_of_the_first(store, config):
    interrupted(store, config(), [])
    assert not any(name.endswith("manifest.json") for name in objects(store))
    told = []
    made = run_inline(TOY, config(), {}, store, on_event=told.append)
    assert [e["message"] for e in told if e["kind"] == "log"] == [f"parts/{i}.txt kept" for i in range(3)]
    assert made.manifest.attempts == 2
    made.verify()
    assert objects(store) == {f"{made.where}/{e.path}" for e in made.manifest.files.values()} | {
        f"{made.where}/manifest.json"
    }
    tree = made.path()
    assert [(tree / f"parts/{i}.txt").read_text()[:3] for i in range(PARTS)] == [f"0 {i}" for i in range(PARTS)]


def test_a_published_file_that_was_damaged_meanwhile_is_made_again(store, config, tmp_path):
    interrupted(store, config(), [])
    [name] = [name for name in objects(store) if name.endswith("/parts/1.txt")]
    store.root.delete([name])
    store.root.write(name, b"x" * 4000)
    told = []
    run_inline(TOY, config(), {}, store, on_event=told.append).verify()
    assert "parts/1.txt of an earlier attempt is damaged; it is made again" in [e.get("message") for e in told]


def test_a_stage_that_cannot_resume_starts_from_nothing(store, config, monkeypatch):
    from dataclasses import replace

    from tests.tasks.store import toy

    interrupted(store, config(), [])
    monkeypatch.setattr(toy, "STAGE", replace(toy.STAGE, resumable=False))
    told = []
    made = run_inline(TOY, config(), {}, store, on_event=told.append)
    assert not [e for e in told if e["kind"] == "log"]
    assert {entry.path for entry in made.manifest.files.values()} >= {"whole.txt~2", "parts/0.txt~2"}
    assert len(objects(store)) == PARTS + 2


def test_a_fenced_off_owner_neither_publishes_nor_commits(store, config, monkeypatch):
    """The first owner is overtaken in the middle of its run: its writes stop, the second's artifact stands."""
    monkeypatch.setattr(leases, "process_identity", lambda pid=None: None)
    from tests.tasks.store import toy

    second = {}
    genuine = toy.run

    def overtaken(view, inputs, out):
        (out.path / "parts").mkdir()
        (out.path / "parts/0.txt").write_text("of the first owner")
        out.publish("parts/0.txt")
        lease = out._lease
        lease._ended.set()  # frozen: no heartbeat any more
        monkeypatch.setattr(toy, "run", genuine)
        impatient = Store(store.root.url, cache_dir=store.cache_dir, lease_seconds=1)
        second["made"] = run_inline(TOY, config(), {}, impatient)
        lease.clock.now = lambda: leases.boottime() + 60  # the time that passed meanwhile
        (out.path / "parts").mkdir(parents=True)  # the second owner cleared it away
        (out.path / "parts/1.txt").write_text("of the first owner")
        with pytest.raises(LeaseLost):
            out.publish("parts/1.txt")
        (out.path / "late.txt").write_text("of the first owner")
        return {}

    monkeypatch.setattr(toy, "run", overtaken)
    store.lease_seconds = 1
    with pytest.raises(LeaseLost):
        run_inline(TOY, config(), {}, store)
    second["made"].verify()
    assert len(objects(store)) == PARTS + 2
    assert second["made"].path("parts/1.txt").read_text().startswith("0 1")


@pytest.mark.parametrize("damage", ["missing", "short", "other bytes"])
def test_damage_is_named_and_repaired_by_making_the_artifact_again(store, config, damage):
    made = run_inline(TOY, config(), {}, store)
    name = f"{made.where}/whole.txt"
    store.root.delete([name])
    if damage != "missing":
        store.root.write(name, b"x" if damage == "short" else b"x" * made.manifest.files["whole.txt"].size)
    if damage == "other bytes":  # seen on reading, not before
        again = store.artifact(made.stage, made.key)
        with pytest.raises(Damaged, match=r"whole.txt .* run 'python -m tasks.store repair toy/"):
            again.verify()
        return
    with pytest.raises(Damaged, match=f"toy/{made.key}.*whole.txt.*repair"):
        store.artifact(made.stage, made.key)
    assert store.locate(TOY, config(), {}).state == "damaged"
    told = []
    run_inline(TOY, config(), {}, store, on_event=told.append).verify()
    assert "dropped and made again" in told[0]["message"]


def test_a_foreign_manifest_is_refused(store, config):
    made = run_inline(TOY, config(seed=1), {}, store)
    other = made.where.replace(made.key, "0" * 64)
    store.root.write(f"{other}/manifest.json", made.manifest.to_bytes())
    with pytest.raises(Damaged, match="holds the manifest of"):
        store.artifact("toy", "0" * 64)
    forged = made.manifest.to_bytes().replace(b'"seed": 1', b'"seed": 2')
    store.root.write(f"{made.where}/manifest.json", forged)
    with pytest.raises(Damaged, match="give another key"):
        store.artifact("toy", made.key)
    store.root.write(f"{made.where}/manifest.json", forged[:100])
    with pytest.raises(Damaged, match="cannot be read"):
        store.artifact("toy", made.key)


def test_strict_code_makes_changed_sources_a_miss_and_leaves_the_old_artifact(store, config, monkeypatch):
    from tasks.store import sources

    made = run_inline(TOY, config(), {}, store)
    assert store.locate(TOY, config(), {}).reason == "same code"
    now = {**sources.cached_closure(TOY), "tasks/helper.py": "1" * 64}
    monkeypatch.setattr(sources, "cached_closure", lambda module: now)
    found = store.locate(TOY, config(), {})
    assert (found.state, found.changed_files, found.reason) == (
        "hit",
        ["tasks/helper.py"],
        "1 source file changed since",
    )
    strict = Store(store.root.url, cache_dir=store.cache_dir, strict_code=True)
    assert strict.locate(TOY, config(), {}).state == "miss"
    again = run_inline(TOY, config(), {}, strict)
    assert again.key != made.key
    assert strict.locate(TOY, config(), {}).artifact.key == again.key
    assert store.locate(TOY, config(), {}).artifact.key == made.key


def test_a_miss_says_what_differs(store, config):
    assert store.locate(TOY, config(seed=1), {}).reason == "never made here"
    run_inline(TOY, config(seed=1), {}, store)
    assert store.locate(TOY, config(seed=2), {}).reason == "differs in seed 1 → 2"


def test_secrets_reach_neither_manifest_nor_log(store, config, monkeypatch):
    from tests.tasks.store import toy

    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    genuine = toy.run
    monkeypatch.setattr(
        toy, "run", lambda c, i, out: out.log("with hf_abcdefghijkl") or genuine(c, i, out) | {"t": "hf_abcdefghijkl"}
    )
    told = []
    made = run_inline(TOY, config(), {}, store, on_event=told.append)
    assert "hf_abc" not in json.dumps(told)
    assert b"hf_abc" not in store.root.read(f"{made.where}/manifest.json")


def test_metrics_that_json_cannot_hold_do_not_cost_the_work(store, config, monkeypatch):
    import numpy as np

    from tests.tasks.store import toy

    monkeypatch.setattr(
        toy, "run", lambda c, i, out: {"loss": np.float32("nan"), "n": np.int64(3), "ids": np.arange(2)}
    )
    told = []
    made = run_inline(TOY, config(), {}, store, on_event=told.append)
    assert made.manifest.metrics == {"loss": None, "n": 3, "ids": [0, 1]}
    assert told == [{"kind": "log", "message": "metrics.loss is nan; the manifest holds null instead"}]


def test_an_artifact_removed_by_hand_in_mid_work_is_made_from_nothing(store, config):
    interrupted(store, config(), [])
    store.root.delete(list(store.root.find("")))
    assert run_inline(TOY, config(), {}, store).manifest.attempts == 1


def test_leftovers_of_a_kill_after_the_manifest_are_swept_up_by_the_next_run(store, config):
    made = run_inline(TOY, config(), {}, store)
    store.root.write(f"{made.where}/checkpoints/7~1.1/data/x", b"junk")
    store.root.write(f"{made.where}/published/000001/parts/0.txt.json", b"{}")
    run_inline(TOY, config(), {}, store)
    assert len(objects(store)) == PARTS + 2


def test_nothing_stays_in_the_work_directory(store, config, tmp_path):
    interrupted(store, config(), [])
    run_inline(TOY, config(), {}, store)
    base = Path(store.root.url) / ".work" if os.path.isdir(store.root.url) else store.cache_dir / "work"
    assert [path for path in base.rglob("*") if path.is_file()] == []
