"""Directories that outlive an attempt: committed whole, verified when fetched, never overwritten."""

import os

import pytest

from tasks.stage import StopSignal
from tasks.store import Damaged, LeaseLost
from tasks.store import lease as leases
from tasks.store.events import Events
from tasks.store.lease import Lease
from tasks.store.workspace import Workspace

WHERE = "base/key"


@pytest.fixture
def attempt(root, tmp_path, clock, monkeypatch):
    """`attempt()`: the workspace of the next attempt at one key."""
    monkeypatch.setattr(leases, "process_identity", lambda pid=None: None)

    def make():
        lease = Lease(root, WHERE, seconds=5, clock=clock)
        token = lease.acquire()
        out = Workspace(root, WHERE, lease, tmp_path / f"work/{token:06d}", Events(lambda event: None), StopSignal())
        out.adopt(resumable=True)
        return out

    return make


def fill(out, name="checkpoints/000100", size=100):
    folder = out.path / name / "state"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(os.urandom(size))
    (folder / "b").write_bytes(b"")
    return folder


def test_what_one_attempt_mirrors_the_next_one_fetches(attempt):
    first = attempt()
    content = (fill(first) / "a").read_bytes()
    first.mirror_directory("checkpoints/000100", {"step": 100})
    second = attempt()
    [found] = second.remote_directories()
    assert (found.name, found.meta, found.token, found.size) == ("checkpoints/000100", {"step": 100}, 1, 100)
    path = second.fetch_directory(found)
    assert path == second.path / "checkpoints/000100"
    assert (path / "state/a").read_bytes() == content
    assert (path / "state/b").read_bytes() == b""


def test_without_its_marker_a_directory_does_not_exist_and_is_cleared_by_the_next_attempt(attempt, root):
    first = attempt()
    fill(first)
    mirrored = first.mirror_directory("checkpoints/000100")
    root.delete([f"{WHERE}/{mirrored.location}/commit.json"])
    second = attempt()
    assert second.remote_directories() == []
    assert root.find(f"{WHERE}/checkpoints") == {}


@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
def test_damage_is_found_on_fetching(attempt, root, damage):
    first = attempt()
    fill(first)
    mirrored = first.mirror_directory("checkpoints/000100")
    [name] = [entry.path for file, entry in mirrored.files.items() if file.endswith("a")]
    data = bytearray(root.read(f"{WHERE}/{name}"))
    root.delete([f"{WHERE}/{name}"])
    if damage != "missing":
        data[0] ^= 1
        root.write(f"{WHERE}/{name}", bytes(data[: 50 if damage == "short" else None]))
    second = attempt()
    [found] = second.remote_directories()
    for donor in (first.path,):
        (donor / "checkpoints/000100/state/a").unlink(missing_ok=True)
    with pytest.raises(Damaged, match="checkpoints/000100"):
        second.fetch_directory(found)
    assert not (second.path / "checkpoints/000100").exists()


def test_quarantine_keeps_the_bytes_and_survives_the_next_attempt(attempt, root):
    first = attempt()
    fill(first)
    mirrored = first.mirror_directory("checkpoints/000100")
    first.directories.quarantine(mirrored, "a flipped byte")
    assert first.remote_directories() == []
    second = attempt()
    assert second.directories.unusable("checkpoints") == {mirrored.location: "a flipped byte"}
    assert len(root.find(f"{WHERE}/checkpoints")) == 3


def test_the_same_step_mirrored_twice_has_two_places(attempt):
    out = attempt()
    fill(out)
    one, two = (out.mirror_directory("checkpoints/000100", {"try": n}) for n in (1, 2))
    assert one.location != two.location
    assert [item.meta["try"] for item in out.remote_directories()] == [1, 2]
    out.directories.remove(one)
    assert [item.meta["try"] for item in out.remote_directories()] == [2]


def test_a_fenced_off_owner_cannot_mirror(attempt, clock):
    first = attempt()
    attempt()
    fill(first)
    with pytest.raises(LeaseLost):
        first.mirror_directory("checkpoints/000100")


def test_checkpoints_do_not_become_part_of_the_artifact(attempt, root):
    from tasks.store.manifest import Manifest

    out = attempt()
    fill(out)
    out.mirror_directory("checkpoints/000100")
    (out.path / "weights").write_bytes(b"w")
    out.commit(Manifest("base", 1, "key", {}, {}, {}))
    out.tidy()
    assert set(root.find(WHERE)) == {"manifest.json", "weights", "leases/000001"}
