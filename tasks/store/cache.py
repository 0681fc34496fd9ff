"""Local copies of remote files: verified, limited in size, safe for several processes.

A copy is named by its checksum, so it can be shared by artifacts and never be out of date. It appears by an atomic
rename; a lock per entry keeps two processes from fetching the same file twice.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.store.manifest import Damaged, FileEntry, remedy
from tasks.store.roots import sha256_file


class ReadCache:
    """Files below `directory`, at most `limit` bytes together; the least recently used go first."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory, self.limit = directory, limit

    def get(self, entry: FileEntry, where: str, name: str, fetch: Callable[[Path], None]) -> Path:
        """The local copy of a file with this checksum, fetched if need be.

        A file that arrives with other bytes raises Damaged, naming `where` (stage/key) and `name`.
        """
        final = self.directory / entry.sha256[:2] / entry.sha256
        if self._is_whole(final, entry):
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.with_suffix(".lock")):
            if self._is_whole(final, entry):
                return final
            arriving = final.with_suffix(f".{uuid.uuid4().hex}")
            try:
                try:
                    fetch(arriving)
                except FileNotFoundError as error:
                    raise Damaged(f"{where} lacks its file {name}: {remedy(where)}") from error
                if sha256_file(arriving) != entry.sha256:
                    raise Damaged(f"{where}: {name} does not have the checksum of its manifest: {remedy(where)}")
                self._make_room(entry.size, keep=final)
                os.replace(arriving, final)
            finally:
                arriving.unlink(missing_ok=True)
        return final

    def tree(self, where: str, files: Mapping[str, Path]) -> Path:
        """A directory for the artifact `where` in which each verified file has its own name, as hard links."""
        base = self.directory / "trees" / where
        for name, source in files.items():
            target = base / name
            if target.exists() and target.samefile(source):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            linked = target.with_name(f".{uuid.uuid4().hex}")
            try:
                os.link(source, linked)
            except OSError:  # a local root on another filesystem
                shutil.copyfile(source, linked)
            os.replace(linked, target)
        return base

    def _is_whole(self, path: Path, entry: FileEntry) -> bool:
        """True for a copy that was verified on arrival and still has its size; marks it as used."""
        try:
            if path.stat().st_size != entry.size:
                path.unlink()
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _make_room(self, size: int, keep: Path) -> None:
        """Delete least recently used copies until `size` more bytes fit. Readers that hold one open keep their data."""
        copies = []
        for path in self.directory.glob("??/*"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                copies.append((stat.st_mtime, stat.st_size, stat.st_ino, path))
        total = size + sum(item[1] for item in copies)
        gone = set()
        for _, length, inode, path in sorted(copies):
            if total <= self.limit:
                break
            if path != keep and not path.suffix:  # a suffix: a lock, or arriving in another process
                path.unlink(missing_ok=True)
                total -= length
                gone.add(inode)
        for linked in self.directory.glob("trees/**/*") if gone else ():
            if linked.is_file() and linked.stat().st_ino in gone:
                linked.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(stream, fcntl.LOCK_UN)
