"""What the store needs of a place to keep objects: a local directory and a bucket answer the same few calls.

Two rules hold on either: an object appears whole or not at all, and `create` succeeds for exactly one caller.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tasks.stage import InputError


class StoreUnavailable(Exception):
    """The root did not answer, or answered with an error that may pass. The sentence says which and what to do."""


@dataclass(frozen=True)
class Found:
    """One object of a listing."""

    size: int  # bytes
    modified: float  # seconds since the epoch, by the clock of the place that keeps it


class Root(Protocol):
    """A place for objects. Names are relative to the root and use `/`."""

    url: str

    def check(self) -> None:
        """Raise InputError in one sentence if the root cannot be read and written. Called before any work."""

    def read(self, name: str) -> bytes:
        """The object's bytes; FileNotFoundError if there is none."""

    def create(self, name: str, data: bytes) -> None:
        """Make a small object; FileExistsError if there is one, unless it is what this very call made."""

    def write(self, name: str, data: bytes) -> None:
        """Make or replace a small object. Only for objects that have one writer."""

    def put(self, path: Path, name: str) -> None:
        """Make an object from a finished local file, verified; FileExistsError if there is one with other bytes."""

    def fetch(self, name: str, path: Path) -> None:
        """Copy the object to a local file that does not exist yet; FileNotFoundError if there is none."""

    def find(self, prefix: str) -> dict[str, Found]:
        """Every object below `prefix/`, by its name relative to `prefix`."""

    def folders(self, prefix: str = "") -> list[str]:
        """Names directly below `prefix/` that have objects below them."""

    def delete(self, names: list[str]) -> None:
        """Remove objects; those that are gone already do not matter."""


def open_root(url: str) -> Root:
    """The root at a local path or `gs://bucket/prefix`."""
    if url.startswith("gs://"):
        from tasks.store.gcs import GcsRoot

        return GcsRoot(url)
    if "://" in url:
        raise InputError(f"store.root={url} is neither a local directory nor gs://bucket/prefix.")
    from tasks.store.local import LocalRoot

    return LocalRoot(Path(url).expanduser())


def sha256_file(path: Path) -> str:
    """sha256 of a local file, 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
