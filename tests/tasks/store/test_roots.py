"""Local directory and bucket keep the same promises."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.stage import InputError
from tasks.store.roots import open_root


def test_objects_are_read_listed_and_deleted(root):
    root.check()
    root.create("a/one", b"1")
    root.create("a/b/two", b"22")
    root.write("c", b"3")
    assert root.read("a/b/two") == b"22"
    assert {name: found.size for name, found in root.find("a").items()} == {"one": 1, "b/two": 2}
    assert set(root.find("")) == {"a/one", "a/b/two", "c"}
    assert root.folders() == ["a"]
    assert root.folders("a") == ["b"]
    assert root.find("nothing") == {}
    assert root.folders("nothing") == []
    root.delete(["a/one", "a/b/two", "gone"])
    assert set(root.find("")) == {"c"}
    assert root.folders() == []
    with pytest.raises(FileNotFoundError):
        root.read("a/one")


def test_one_of_many_creators_wins(root):
    def create(number):
        try:
            root.create("manifest", str(number).encode())
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(create, range(16)) if number is not None]
    assert len(won) == 1
    assert root.read("manifest") == str(won[0]).encode()


@pytest.mark.parametrize("size", [0, 10, 6_000_000])
def test_files_go_in_and_come_out_unchanged(root, tmp_path, size):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    root.put(source, "x/file")
    root.put(source, "x/file")  # the same bytes again: a reply was lost
    root.fetch("x/file", tmp_path / "deep/copy")
    assert (tmp_path / "deep/copy").read_bytes() == source.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(os.urandom(size + 1))
    with pytest.raises(FileExistsError):
        root.put(other, "x/file")
    with pytest.raises(FileNotFoundError):
        root.fetch("x/nothing", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://b/x", "neither a local directory nor gs://"),
        ("gs://", "names no bucket"),
        ("/proc/encore", "cannot be used"),
    ],
)
def test_an_impossible_root_is_one_sentence(url, sentence):
    with pytest.raises(InputError, match=sentence):
        open_root(url).check()
