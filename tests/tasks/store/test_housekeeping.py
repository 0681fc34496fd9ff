"""ls, show, verify, repair, gc and lineage, as a person and as a script read them."""

import json
import re
from dataclasses import replace

import pytest

from tasks.store import Store, run_inline
from tasks.store.__main__ import main, telling
from tasks.store.lease import Lease
from tests.tasks.store import toy
from tests.tasks.store.conftest import TOY


@pytest.fixture
def store(root_url, tmp_path):
    return Store(root_url, cache_dir=tmp_path / "cache", lease_seconds=5)


@pytest.fixture
def run(store, capsys):
    """`run("ls", "--json")` → (exit status, output), JSON read."""

    def call(*words):
        capsys.readouterr()  # what the stages wrote
        code = main([*words, "--root", store.root.url])
        out = capsys.readouterr()
        text = out.out + out.err
        return code, json.loads(text) if "--json" in words and code != 2 else text

    return call


@pytest.fixture
def chain(store, config, monkeypatch):
    """A run: two artifacts that a third, a report, is made from; and one that nothing refers to."""
    first = run_inline(TOY, config(seed=1), {}, store)
    second = run_inline(TOY, config(seed=2), {"source": first}, store)
    monkeypatch.setattr(toy, "STAGE", replace(toy.STAGE, name="report"))
    monkeypatch.setattr("tasks.stage.declaration", lambda name: toy.STAGE)
    report = run_inline(TOY, config(seed=3), {"source": second}, store)
    monkeypatch.setattr(toy, "STAGE", replace(toy.STAGE, name="toy"))
    loose = run_inline(TOY, config(seed=4), {}, store)
    return first, second, report, loose


def test_ls_lists_age_size_time_and_cost(run, chain, store):
    code, entries = run("ls", "--json")
    assert code == 0
    assert {(e["stage"], e["key"]) for e in entries} == {(a.stage, a.key) for a in chain}
    assert all(e["state"] == "finished" and e["cost_usd"] == 0.0 and e["wall_seconds"] > 0 for e in entries)
    size = chain[0].manifest.size
    assert all(size < e["bytes"] < size + 10_000 for e in entries)
    _, text = run("ls", "toy")
    assert "age" in text
    assert chain[0].key[:12] in text
    assert chain[2].key[:12] not in text


def test_show_and_lineage_lead_from_a_score_to_its_sources(run, chain):
    first, second, report, _ = chain
    code, steps = run("lineage", f"report/{report.key[:8]}", "--json")
    assert code == 0
    assert [(s["depth"], s["artifact"]) for s in steps] == [(0, report.where), (1, second.where), (2, first.where)]
    _, text = run("lineage", f"report/{report.key[:8]}")
    assert re.search(rf"report/{report.key[:12]}.*\n.*source: toy/{second.key[:12]}.*\n.*toy/{first.key[:12]}", text)
    _, shown = run("show", f"toy/{second.key[:10]}", "--json")
    assert shown["manifest"]["inputs"]["source"]["key"] == first.key
    _, text = run("show", f"toy/{second.key[:10]}")
    assert "whole.txt" in text


def test_a_step_of_the_lineage_tells_the_score_before_the_circumstances():
    metrics = {"devices": 8, "flops": 3e19, "loss": 2.0, "ok": True, "tokens": 5, "val_bpb": 0.7512345678, "why": "x"}
    assert telling(metrics, 3) == "val_bpb=0.751235, loss=2, tokens=5"
    assert telling({"parts": 5, "seed": 2}) == "parts=5, seed=2"


def test_verify_finds_a_flipped_byte_and_repair_drops_that_artifact_alone(run, chain, store):
    first = chain[0]
    name = f"{first.where}/whole.txt"
    data = bytearray(store.root.read(name))
    data[7] ^= 1
    store.root.delete([name])
    store.root.write(name, bytes(data))
    code, problems = run("verify", "--json", "--quiet")
    assert code == 1
    assert [p["artifact"] for p in problems] == [first.where]
    assert "whole.txt" in problems[0]["problem"]
    code, text = run("repair")
    assert code == 0
    assert f"dropped {first.where}" in text
    assert store.root.find(first.where) == {}
    assert run("verify", "--quiet", "--json") == (0, [])
    assert "nothing is damaged" in run("repair")[1]


def test_gc_takes_only_what_nothing_kept_refers_to_and_only_when_told(run, chain, store):
    first, second, report, loose = chain
    code, dry = run("gc", "--older-than-days", "0", "--json")
    assert code == 0
    assert [e["key"] for e in dry["entries"]] == [loose.key]
    assert not dry["deleted"]
    assert store.lookup("toy", loose.key)
    assert run("gc", "--json")[1]["entries"] == []  # too young
    run("gc", "--older-than-days", "0", "--delete")
    assert store.root.find(loose.where) == {}
    for kept in (first, second, report):
        kept.verify()
    _, all_runs = run("gc", "--keep", "0", "--older-than-days", "0", "--json")
    assert {e["key"] for e in all_runs["entries"]} == {first.key, second.key, report.key}


def test_gc_never_takes_what_is_leased_or_read_by_a_run_at_work(run, chain, store):
    loose, unfinished, abandoned = chain[3], "a" * 64, "b" * 64
    lease = Lease(store.root, f"base/{unfinished}", seconds=60, inputs=[loose.where])
    lease.acquire()
    store.root.write(f"base/{unfinished}/part", b"x")
    store.root.write(f"base/{abandoned}/part", b"x")
    _, found = run("gc", "--older-than-days", "0", "--json")
    assert [(e["stage"], e["key"]) for e in found["entries"]] == [("base", abandoned)]
    assert {e["key"]: e["state"] for e in run("ls", "base", "--json")[1]} == {
        unfinished: "at work",
        abandoned: "unfinished",
    }


def test_a_wrong_reference_is_one_sentence(run, chain):
    code, text = run("show", "toy/nothing")
    assert code == 2
    assert re.fullmatch(r".* has no toy/nothing: 'python -m tasks.store ls' lists what there is\.\n", text)


def test_what_is_not_ours_is_neither_listed_nor_dropped_nor_collected(tmp_path, capsys):
    """A slip of --root must not cost a thesis."""
    home, beside = tmp_path / "home", tmp_path / "beside"
    strangers = [home / "Documents/thesis/deep/ch1.txt", home / "projects/webext/manifest.json", home / "a/b/c"]
    strangers += [beside / ("d" * 64) / "manifest.json", beside / "f" / "manifest.json"]
    for path in strangers:
        path.parent.mkdir(parents=True)
        path.write_text('{"name": "ext"}')
    for words in (["gc", "--delete", "--older-than-days", "0", "--keep", "0"], ["repair"], ["verify"]):
        assert main([*words, "--root", str(home)]) == 0
    for reference in (f"../beside/{'d' * 64}", f"../beside/{'d' * 5}", "../beside", "..", "Documents/thesis"):
        assert main(["repair", reference, "--root", str(home)]) == 2
    assert all(path.exists() for path in strangers)
    assert "nothing is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--keep", "-1"], ["--older-than-days", "-5"], ["--older-than-days", "nan"]])
def test_gc_refuses_a_number_that_would_keep_nothing(run, words):
    with pytest.raises(SystemExit, match="2"):
        run("gc", *words)


@pytest.mark.parametrize("place", ["absent", "file"])
def test_a_root_that_is_no_store_is_said_to_be_none(tmp_path, capsys, place):
    (tmp_path / "file").write_text("")
    assert main(["verify", "--root", str(tmp_path / place)]) == 2
    assert str(tmp_path / place) in capsys.readouterr().err
