"""Directories that outlive an attempt before its artifact is finished: checkpoints.

A directory is mirrored file by file and exists once its marker `commit.json` does, which is written last and lists
every file with size and checksum. Each mirroring has a place of its own (`<name>~<token>.<n>`), so nothing is ever
overwritten: not by an upload that is tried again, nor by an owner that has been fenced off.

The policy (what to keep, which to restore) is its user's; here are only the moves.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.store.gather import parallel
from tasks.store.lease import Lease
from tasks.store.manifest import Damaged, FileEntry
from tasks.store.roots import Root, sha256_file

MARKER = "commit.json"
QUARANTINE = "quarantined.json"


@dataclass(frozen=True)
class Mirrored:
    """A committed directory. `meta` is what its writer gave along; `token` and `serial` order mirrorings in time."""

    name: str  # as given to `mirror`, such as "checkpoints/000100"
    location: str  # below the artifact's directory
    token: int
    serial: int
    meta: dict[str, Any]
    files: dict[str, FileEntry]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())


class Directories:
    """Mirrored directories of the key at `where` below `root`. `lease` is looked at before each write."""

    def __init__(self, root: Root, where: str, lease: Lease, local: Path, donors: Callable[[], list[Path]]) -> None:
        self._root, self._where, self._lease, self._local, self._donors = root, where, lease, local, donors
        self._serial = 0

    def mirror(self, name: str, meta: Mapping[str, Any] | None = None) -> Mirrored:
        """Upload the finished local directory `name`; it counts once this returns. Safe to call from a thread.

        Raises StoreUnavailable or OSError if it could not be stored (what arrived is cleared later), LeaseLost if
        another owner has the key.
        """
        base = self._local / name
        self._serial += 1
        location = f"{name}~{self._lease.token}.{self._serial}"
        paths = {p.relative_to(base).as_posix(): p for p in sorted(base.rglob("*")) if p.is_file()}
        if not paths:
            raise FileNotFoundError(f"{base} holds no file to mirror.")

        def upload(file: str) -> FileEntry:
            self._lease.confirm(fresh=True)
            entry = FileEntry(f"{location}/data/{file}", paths[file].stat().st_size, sha256_file(paths[file]))
            self._root.put(paths[file], f"{self._where}/{entry.path}")
            return entry

        entries = dict(zip(paths, parallel(upload, list(paths)), strict=True))
        mirrored = Mirrored(name, location, self._lease.token, self._serial, dict(meta or {}), entries)
        self._lease.confirm()
        self._root.create(f"{self._where}/{location}/{MARKER}", json.dumps(asdict(mirrored), allow_nan=False).encode())
        return mirrored

    def committed(self, below: str) -> list[Mirrored]:
        """Every committed directory below the folder `below`, oldest mirroring first; a bad marker counts as none."""
        found = []
        for name in self._root.find(f"{self._where}/{below}"):
            if name.rpartition("/")[2] != MARKER:
                continue
            try:
                plain = json.loads(self._root.read(f"{self._where}/{below}/{name}"))
                files = {file: FileEntry(**entry) for file, entry in plain.pop("files").items()}
                found.append(Mirrored(files=files, **plain))
            except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
                continue
        return sorted(found, key=lambda item: (item.token, item.serial))

    def unusable(self, below: str) -> dict[str, str]:
        """Location → why, of directories that were committed once and count no more: quarantined, or a bad marker.

        As long as there is one, "nothing was ever saved here" is not true.
        """
        good = {mirrored.location for mirrored in self.committed(below)}
        found = {}
        for name in self._root.find(f"{self._where}/{below}"):
            folder, _, file = name.rpartition("/")
            location = f"{below}/{folder}"
            if file not in (MARKER, QUARANTINE) or location in good:
                continue
            try:
                found[location] = str(json.loads(self._root.read(f"{self._where}/{below}/{name}"))["reason"])
            except (FileNotFoundError, ValueError, TypeError, KeyError):
                found[location] = f"its {MARKER} cannot be read"
        return found

    def fetch(self, mirrored: Mirrored) -> Path:
        """The directory under its own name in the workspace, every file verified; raises Damaged naming the bad one.

        A copy that an earlier attempt left on this machine is used where its bytes are right.
        """
        target = self._local / mirrored.name
        arriving = self._local / "scratch" / uuid.uuid4().hex

        def bring(file: str) -> None:
            entry = mirrored.files[file]
            path = arriving / file
            path.parent.mkdir(parents=True, exist_ok=True)
            for donor in self._donors():
                candidate = donor / mirrored.name / file
                if candidate.is_file() and _is(candidate, entry):
                    os.link(candidate, path)
                    return
            try:
                self._root.fetch(f"{self._where}/{entry.path}", path)
            except FileNotFoundError as error:
                raise Damaged(f"{self._where}: {mirrored.name} lacks its file {file}.") from error
            if not _is(path, entry):
                raise Damaged(f"{self._where}: {mirrored.name}/{file} does not have the checksum of its marker.")

        try:
            parallel(bring, list(mirrored.files))
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            arriving.rename(target)
        finally:
            shutil.rmtree(arriving, ignore_errors=True)
        return target

    def quarantine(self, mirrored: Mirrored, reason: str) -> None:
        """Make the directory count no more, keeping its bytes for a look until the artifact is finished."""
        self._lease.confirm()
        note = json.dumps({"reason": reason, **asdict(mirrored)}).encode()
        self._root.write(f"{self._where}/{mirrored.location}/{QUARANTINE}", note)
        self._root.delete([f"{self._where}/{mirrored.location}/{MARKER}"])

    def remove(self, mirrored: Mirrored) -> None:
        """Delete the directory: its marker first, so that half of it never counts."""
        self._lease.confirm()
        self._root.delete([f"{self._where}/{mirrored.location}/{MARKER}"])
        self._root.delete([f"{self._where}/{entry.path}" for entry in mirrored.files.values()])


def _is(path: Path, entry: FileEntry) -> bool:
    return path.stat().st_size == entry.size and sha256_file(path) == entry.sha256
