"""Local files that a config names enter the key by what lies in them."""

import os
from dataclasses import replace

import pytest

from conf.schema import MixtureItem
from tasks.stage import InputError, declaration
from tasks.store import Store, keys, missing, run_inline, run_stage
from tasks.store.contents import contents, local_files


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text(f"A text called {name}.\n" * 20)
    return folder


def of_files(config, folder):
    made = config()
    return replace(made, data=replace(made.data, kind="files", paths=[f"{folder}/*.txt"]))


def key_of(config):
    return keys.digest(keys.payload(declaration("corpus"), config, {}))


def test_an_edited_file_is_another_input_and_a_touched_one_is_not(config, texts):
    asked = of_files(config, texts)
    before = key_of(asked)
    os.utime(texts / "a.txt", (1, 1))
    assert key_of(asked) == before
    stamp = (texts / "a.txt").stat()
    (texts / "a.txt").write_text((texts / "a.txt").read_text().replace("called", "styled"))  # of the same size
    os.utime(texts / "a.txt", ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert key_of(asked) != before


def test_the_store_says_which_file_was_edited_and_makes_the_corpus_again(config, texts, tmp_path):
    asked, store = of_files(config, texts), Store.open(tmp_path / "runs", cache_dir=tmp_path / "cache")
    first = run_stage("corpus", asked, {}, store, on_event=lambda event: None)
    assert store.locate("corpus", asked, {}).artifact.key == first.key
    (texts / "a.txt").write_text("Something else.\n" * 20)
    found = store.locate("corpus", asked, {})
    assert not found.hit
    assert f"data.paths content.{texts}/a.txt" in found.reason
    second = run_stage("corpus", asked, {}, store, on_event=lambda event: None)
    assert second.key == found.key != first.key


def test_paths_globs_directories_and_items_are_followed_and_addresses_are_not(config, texts):
    assert list(local_files(f"{texts}/a.txt")) == [f"{texts}/a.txt"]
    assert sorted(local_files(f"{texts}/*.txt")) == sorted(local_files(str(texts)))
    assert not list(local_files("gs://bucket/a.txt"))
    assert not list(local_files("world"))
    made = config()
    items = [MixtureItem(path=f"{texts}/b.txt"), MixtureItem(path="https://example.org/chats.jsonl")]
    found = contents(declaration("conversations"), replace(made, sft=replace(made.sft, mixture=items)))
    assert list(found) == ["sft.mixture content"]
    assert list(found["sft.mixture content"]) == [f"{texts}/b.txt"]
    assert not contents(declaration("core"), made)  # the sample world


def test_every_missing_input_is_named_before_anything_runs(config, texts):
    made = of_files(config, texts)
    assert not missing(made)
    broken = replace(made, eval=replace(made.eval, bundle=str(texts / "none")), chat=replace(made.chat, word_list="w"))
    assert [line.split(":")[0] for line in missing(broken)] == ["eval.bundle", "chat.word_list"]
    assert "matches no file (looked in" in missing(broken)[0]


def test_a_file_that_changes_while_it_is_read_makes_no_artifact(config, texts, tmp_path):
    asked, store = of_files(config, texts), Store.open(tmp_path / "runs", cache_dir=tmp_path / "cache")

    def disturb(event):
        if event["kind"] == "progress":  # the first file has been read
            (texts / "a.txt").write_text("Edited in between.\n" * 20)

    with pytest.raises(InputError, match="was changed meanwhile: run it again"):
        run_inline("corpus", asked, {}, store, on_event=disturb)
    assert not store.locate("corpus", asked, {}).hit
