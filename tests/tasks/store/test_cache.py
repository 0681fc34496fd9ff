"""Local copies: fetched once, verified, limited, and safe while somebody uses them."""

import hashlib
import subprocess
import sys
import threading

import pytest

from tasks.store import Damaged
from tasks.store.cache import ReadCache
from tasks.store.manifest import FileEntry
from tasks.store.sources import PROJECT


def entry(data):
    return FileEntry("x", len(data), hashlib.sha256(data).hexdigest())


def get(cache, data):
    calls = []

    def fetch(path):
        calls.append(path)
        path.write_bytes(data)

    path = cache.get(entry(data), fetch)
    assert path.read_bytes() == data
    return path, len(calls)


def test_a_file_is_fetched_once(tmp_path):
    assert get(ReadCache(tmp_path, 1000), b"abc")[1] == 1
    assert get(ReadCache(tmp_path, 1000), b"abc")[1] == 0


def test_a_copy_of_the_wrong_size_is_fetched_again(tmp_path):
    path, _ = get(ReadCache(tmp_path, 1000), b"abc")
    path.write_bytes(b"ab")
    assert get(ReadCache(tmp_path, 1000), b"abc")[1] == 1


def test_what_is_refused_on_arrival_leaves_nothing(tmp_path):
    def fetch(path):
        path.write_bytes(b"wrong")
        raise Damaged("wrong bytes")

    with pytest.raises(Damaged):
        ReadCache(tmp_path, 1000).get(entry(b"abc"), fetch)
    assert [p for p in tmp_path.glob("??/*") if p.suffix != ".lock"] == []


def test_the_least_recently_used_goes_first_and_its_links_with_it(tmp_path):
    first = ReadCache(tmp_path, 250)
    paths = {name: get(first, name.encode() * 100)[0] for name in "ab"}
    tree = first.tree("toy/key", {"file": paths["a"]})
    first._list.close()  # its process ends
    second = ReadCache(tmp_path, 250)
    get(second, b"b" * 100)
    get(second, b"c" * 100)
    assert not paths["a"].exists()
    assert not (tree / "file").exists()
    assert paths["b"].exists()


def test_what_a_living_process_uses_stays(tmp_path):
    code = (
        "import sys, hashlib; from pathlib import Path; from tasks.store.cache import ReadCache; "
        "from tasks.store.manifest import FileEntry; d = b'a' * 100; "
        "entry = FileEntry('x', 100, hashlib.sha256(d).hexdigest()); "
        "cache = ReadCache(Path(sys.argv[1]), 150); "
        "print(cache.get(entry, lambda path: path.write_bytes(d)), flush=True); "
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        held = user.stdout.readline().strip()
        cache = ReadCache(tmp_path, 150)
        get(cache, b"b" * 100)
        with open(held, "rb") as stream:
            assert stream.read() == b"a" * 100
        user.stdin.close()
        user.wait()
    get(cache, b"c" * 100)
    assert not (tmp_path / held).exists()


def test_threads_fetch_the_same_file_once(tmp_path):
    cache = ReadCache(tmp_path, 10_000)
    calls = []

    def fetch(path):
        calls.append(path)
        path.write_bytes(b"abc")

    threads = [threading.Thread(target=cache.get, args=(entry(b"abc"), fetch)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
