"""Local copies of remote files: verified, limited in size, safe for several processes.

A copy is named by its checksum, so it can be shared by artifacts and is never out of date. It appears by an atomic
rename; a lock per entry keeps two processes from fetching the same file twice. What a living process was given is not
removed: it lists its copies in a file that it keeps locked.
"""

import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tasks.store.manifest import FileEntry


class ReadCache:
    """Files below `directory`, at most `limit` bytes together unless more are in use; least recently used go first."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory, self.limit = directory, limit
        self._threads = threading.Lock()
        self._used: set[str] = set()
        self._list: TextIO | None = None  # this process's entries, one checksum a line

    def get(self, entry: FileEntry, fetch: Callable[[Path], None]) -> Path:
        """The local copy of a file with this checksum; it stays as long as this process lives.

        `fetch` brings it to a path and raises if it is not what it should be; nothing is kept then.
        """
        final = self.directory / entry.sha256[:2] / entry.sha256
        final.parent.mkdir(parents=True, exist_ok=True)
        if self._claim(final, entry):
            return final
        with _locked(final.with_suffix(".lock")):
            if self._claim(final, entry):
                return final
            arriving = final.with_suffix(f".{uuid.uuid4().hex}")
            try:
                fetch(arriving)
                self._make_room(entry.size)
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

    def _claim(self, path: Path, entry: FileEntry) -> bool:
        """Note the entry as in use; True if there is a copy, which was verified on arrival and still has its size."""
        with self._threads, _locked(self.directory / "lock", fcntl.LOCK_SH):
            if entry.sha256 not in self._used:
                self._used.add(entry.sha256)
                print(entry.sha256, file=self._own_list(), flush=True)
            try:
                if path.stat().st_size != entry.size:
                    path.unlink()
                    return False
                os.utime(path)
            except FileNotFoundError:
                return False
            return True

    def _own_list(self) -> TextIO:
        if self._list is None:
            users = self.directory / "users"
            users.mkdir(exist_ok=True)
            self._list = (users / uuid.uuid4().hex).open("a")
            fcntl.flock(self._list, fcntl.LOCK_EX)
        return self._list

    def _in_use(self) -> set[str]:
        """Checksums that living processes were given; lists of processes that ended are removed."""
        found = set(self._used)
        for path in (self.directory / "users").glob("*"):
            with suppress(FileNotFoundError), path.open() as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                except BlockingIOError:
                    found.update(stream.read().split())
        return found

    def _make_room(self, size: int) -> None:
        """Delete copies that nobody uses until `size` more bytes fit or none is left."""
        with _locked(self.directory / "lock"):
            copies = []
            for path in self.directory.glob("??/*"):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    copies.append((stat.st_mtime, stat.st_size, stat.st_ino, path))
            total = size + sum(copy[1] for copy in copies)
            if total <= self.limit:
                return
            used, gone = self._in_use(), set()
            for _, length, inode, path in sorted(copies):
                if total <= self.limit:
                    break
                if path.name not in used and not path.suffix:  # a suffix: a lock, or arriving in another process
                    path.unlink(missing_ok=True)
                    total -= length
                    gone.add(inode)
            for linked in self.directory.glob("trees/**/*") if gone else ():
                if linked.is_file() and linked.stat().st_ino in gone:
                    linked.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, how)
        yield
