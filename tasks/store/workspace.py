"""What one attempt may write, and how it becomes an artifact.

An attempt works in a local directory of its own. `publish` stores a finished file; the manifest, written last by
`commit`, makes the artifact. Stored files are never overwritten: the first attempt stores a file under its name, the
n-th under `name~n`, and the manifest says which one counts. So an owner that was frozen in the middle of a write and
fenced off can at worst leave a file behind that nobody refers to.
"""

import json
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.hosts.meeting import Meeting
from tasks.stage import StopSignal
from tasks.store import manifest as manifests
from tasks.store.directories import Directories, Mirrored
from tasks.store.events import Events
from tasks.store.gather import parallel
from tasks.store.lease import Lease
from tasks.store.local import LocalRoot
from tasks.store.manifest import FileEntry, Manifest
from tasks.store.roots import Root, sha256_file

PRIVATE = ("scratch", "checkpoints")
"""Folders of a workspace that never become part of the artifact."""
PUBLISHED = "published"
"""Where, beside the stored files, the checksums of files lie that an unfinished attempt published."""


class Workspace:
    """The place of one attempt. `path` is its directory; what `run` leaves there becomes the artifact."""

    def __init__(
        self,
        root: Root,
        where: str,
        lease: Lease,
        path: Path,
        events: Events,
        stop: StopSignal,
        run_info: dict[str, Any] | None = None,
    ) -> None:
        self.path, self.stop, self.events = path, stop, events
        self.run_info: dict[str, Any] = run_info or {}
        self.meeting: Meeting | None = None  # of the hosts that run this stage together
        self._root, self._where, self._lease = root, where, lease
        self._published: dict[str, FileEntry] = {}
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._rewrites = 0
        self.directories = Directories(root, where, lease, path, self._donors)
        shutil.rmtree(path, ignore_errors=True)  # of a key that was removed, and its tokens with it
        path.mkdir(parents=True)

    def progress(self, **fields: Any) -> None:
        """One progress event, such as progress(step=3, total=100, loss=2.1, tokens_per_s=1e4)."""
        self.events.progress(**fields)

    def log(self, message: str) -> None:
        """One line for the log."""
        self.events.log(message)

    def checkpoint_dir(self) -> Path:
        """The local folder for checkpoints; see `mirror_directory` for what makes one survive."""
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        return folder

    def scratch(self) -> Path:
        """A folder for what the artifact does not need."""
        folder = self.path / "scratch"
        folder.mkdir(exist_ok=True)
        return folder

    def finished(self) -> set[str]:
        """Names published so far; those of an earlier attempt have been verified and lie in `path`."""
        return set(self._published)

    def publish(self, name: str) -> None:
        """This file is complete: it survives a preemption, also on a fresh machine.

        A file that changes later is published again, or stored by the commit. Raises LeaseLost if another owner has
        the key.
        """
        entry = self._store(name)
        sidecar = f"{self._where}/{PUBLISHED}/{self._lease.token:06d}/{entry.path}.json"
        self._root.write(sidecar, json.dumps({"name": name, **asdict(entry)}).encode())

    def mirror_directory(self, name: str, meta: dict[str, Any] | None = None) -> Mirrored:
        """Store the finished local directory `name` (such as "checkpoints/000100"); see `Directories.mirror`."""
        return self.directories.mirror(name, meta)

    def remote_directories(self, below: str = "checkpoints") -> list[Mirrored]:
        """Committed directories of this and earlier attempts, oldest mirroring first."""
        return self.directories.committed(below)

    def fetch_directory(self, mirrored: Mirrored) -> Path:
        """The local, verified copy of a committed directory; raises Damaged."""
        return self.directories.fetch(mirrored)

    def adopt(self, resumable: bool) -> None:
        """Take over what earlier attempts left: published files if `resumable`, nothing otherwise.

        What cannot be used is deleted: it belongs to attempts that are fenced off.
        """
        kept: set[str] = set()
        if resumable:
            entries = self._leftover_entries()
            parallel(lambda name: self._adopt_file(name, entries[name]), list(entries))
            kept.update(entry.path for entry in self._published.values())
            kept.update(mirrored.location for mirrored in self.remote_directories())
            kept.update(self.directories.unusable("checkpoints"))
        self._clear(kept)
        useful = self._donors() if resumable else []
        for folder in self.path.parent.iterdir():
            if folder not in (self.path, *useful):
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, manifest: Manifest) -> Manifest:
        """Store what is left to store and write the manifest, which makes the artifact exist."""
        names = [p.relative_to(self.path).as_posix() for p in sorted(self.path.rglob("*")) if p.is_file()]
        names = [name for name in names if name.split("/")[0] not in PRIVATE]
        entries = dict(zip(names, parallel(self._store, names), strict=True))
        complete = Manifest(**{**vars(manifest), "files": entries, "owner": self._lease.owner})
        self._lease.confirm()
        self._root.create(f"{self._where}/{manifests.NAME}", complete.to_bytes())
        self._published = entries
        return complete

    def tidy(self) -> None:
        """After the commit: remove what the artifact does not need, here and at the root, and every local directory."""
        clear_leftovers(self._root, self._where, {entry.path for entry in self._published.values()})
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def _store(self, name: str) -> FileEntry:
        """Put a file where it belongs, unless these bytes are there already; returns its entry."""
        path = self.path / name
        stamp = _stamp(path)
        known = self._published.get(name)
        if known and self._stamps[name] == stamp:
            return known
        stored = self._free_name(name, again=known is not None)
        entry = FileEntry(stored, stamp[1], sha256_file(path))
        self._lease.confirm(fresh=True)
        self._root.put(path, f"{self._where}/{stored}")
        self._published[name], self._stamps[name] = entry, stamp
        return entry

    def _free_name(self, name: str, *, again: bool) -> str:
        """A stored name that nothing was written under before."""
        if again:
            self._rewrites += 1
            return f"{name}~{self._lease.token}.{self._rewrites}"
        return name if self._lease.token == 1 else f"{name}~{self._lease.token}"

    def _leftover_entries(self) -> dict[str, FileEntry]:
        """name → entry of every file that an earlier attempt published; a later token wins."""
        found: dict[str, FileEntry] = {}
        base = f"{self._where}/{PUBLISHED}"
        for sidecar in sorted(self._root.find(base)):
            try:
                plain = json.loads(self._root.read(f"{base}/{sidecar}"))
                name = plain.pop("name")
                found[name] = FileEntry(**plain)
            except (FileNotFoundError, ValueError, TypeError, KeyError):
                continue
        return found

    def _adopt_file(self, name: str, entry: FileEntry) -> None:
        """Bring a file of an earlier attempt to its place here, if its bytes are right."""
        target = self.path / name
        with suppress(FileNotFoundError):
            self._root.fetch(f"{self._where}/{entry.path}", target)
            if target.stat().st_size == entry.size and sha256_file(target) == entry.sha256:
                self._published[name], self._stamps[name] = entry, _stamp(target)
                return
        target.unlink(missing_ok=True)
        self.log(f"{name} of an earlier attempt is damaged; it is made again")

    def _clear(self, kept: set[str]) -> None:
        """Delete what earlier attempts stored, except `kept` paths and folders, leases and what newer tokens own."""
        doomed = []
        for path in self._root.find(self._where):
            if path.startswith("leases/") or _token(path) >= self._lease.token > 1:
                continue
            if path in kept or any(path.startswith(folder + "/") for folder in kept):
                continue
            if path.startswith(f"{PUBLISHED}/") and path.split("/", 2)[2].removesuffix(".json") in kept:
                continue
            doomed.append(f"{self._where}/{path}")
        self._root.delete(doomed)

    def _donors(self) -> list[Path]:
        """The directory that the attempt before this one left here, if that spares a download."""
        if isinstance(self._root, LocalRoot):
            return []
        return [folder for folder in sorted(self.path.parent.iterdir()) if folder != self.path][-1:]


def clear_leftovers(root: Root, where: str, files: set[str]) -> None:
    """Delete everything of a finished artifact except its manifest, `files` (the paths it refers to) and leases."""
    found = [path for path in root.find(where) if path != manifests.NAME and not path.startswith("leases/")]
    root.delete([f"{where}/{path}" for path in found if path not in files])


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _token(path: str) -> int:
    """The attempt that a stored path belongs to, from its `~n` or `published/n`; 1 without."""
    parts = path.split("/")
    if parts[0] == PUBLISHED:
        return int(parts[1])
    for part in parts:
        tail = part.rpartition("~")[2].split(".")[0]
        if "~" in part and tail.isdigit():
            return int(tail)
    return 1
