"""A root in a local directory: hard links make an object appear whole and exactly once, fsync makes it stay."""

import errno
import os
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tasks.stage import InputError
from tasks.store.roots import Found, sha256_file


class LocalRoot:
    """Objects as files below `directory`."""

    WORK = ".work"
    """Folder below the root, so on its filesystem, for attempts and for objects that have no name yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        if self.directory.exists() and not self.directory.is_dir():
            raise InputError(f"store.root={self.directory} cannot be used: it is a file. Give a directory.")
        self.url = str(self.directory)

    def path(self, name: str) -> Path:
        """Where the object lies."""
        return self.directory / name

    def check(self) -> None:
        try:
            probe = self._temporary()
            probe.write_bytes(b"")
            os.link(probe, linked := probe.with_suffix(".link"))
            linked.unlink()
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"store.root={self.url} cannot be used: {os.strerror(error.errno or errno.EIO)}. "
                "Give a directory that you may write to, on a filesystem with hard links."
            ) from error

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def create(self, name: str, data: bytes) -> None:
        temporary = self._write_temporary(data)
        try:
            self._link(temporary, name)
        finally:
            temporary.unlink()

    def write(self, name: str, data: bytes) -> None:
        temporary = self._write_temporary(data)
        target = self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, target)
        _sync_directory(target.parent)

    def put(self, path: Path, name: str) -> None:
        """Links the file where it is on the same filesystem; it must not be changed afterwards."""
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        try:
            self._link(path, name)
        except FileExistsError:
            if sha256_file(self.path(name)) != sha256_file(path):
                raise
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                raise
            self._copy_in(path, name)

    def fetch(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.path(name), path)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                raise
            shutil.copyfile(self.path(name), path)

    def find(self, prefix: str) -> dict[str, Found]:
        base = self.path(prefix)
        found = {}
        for folder, below, names in os.walk(base):
            if Path(folder) == self.directory and self.WORK in below:
                below.remove(self.WORK)
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):  # removed while we looked
                    stat = path.stat()
                    found[path.relative_to(base).as_posix()] = Found(stat.st_size, stat.st_mtime)
        return found

    def folders(self, prefix: str = "") -> list[str]:
        base = self.path(prefix)
        if not base.is_dir():
            return []
        return sorted(item.name for item in base.iterdir() if item.is_dir() and item.name != self.WORK)

    def delete(self, names: list[str]) -> None:
        for name in names:
            path = self.path(name)
            with suppress(FileNotFoundError):
                path.unlink()
            self._remove_empty(path.parent)

    def sweep(self, older_than: float) -> None:
        """Remove objects that a killed process was writing, untouched for `older_than` seconds."""
        for path in (self.directory / self.WORK / "new").glob("*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > older_than:
                    path.unlink()

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.directory:
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone
                return
            folder = folder.parent

    def _temporary(self) -> Path:
        folder = self.directory / self.WORK / "new"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / uuid.uuid4().hex

    def _write_temporary(self, data: bytes) -> Path:
        temporary = self._temporary()
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _copy_in(self, path: Path, name: str) -> None:
        temporary = self._temporary()
        try:
            shutil.copyfile(path, temporary)
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            self._link(temporary, name)
        finally:
            temporary.unlink(missing_ok=True)

    def _link(self, source: Path, name: str) -> None:
        target = self.path(name)
        while True:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
                break
            except FileNotFoundError:
                if not source.exists():
                    raise
                # The parent was empty and another process removed it between mkdir and link.
        _sync_directory(target.parent)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
