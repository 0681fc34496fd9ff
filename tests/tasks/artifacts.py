"""Artifact and Workspace as far as a data stage uses them, on a plain directory."""

import fnmatch
from pathlib import Path
from typing import Any

from tasks.stage import StopSignal


class Directory:
    """Stands for an artifact and for a workspace; remembers what was published and reported."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self.stop = StopSignal()
        self.published: list[str] = []
        self.logged: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.run_info: dict[str, Any] = {}


class FakeWorkspace(Directory):
    @property
    def path(self) -> Path:
        return self._path

    def scratch(self) -> Path:
        (self._path / "scratch").mkdir(exist_ok=True)
        return self._path / "scratch"

    def finished(self) -> set[str]:
        return set(self.published)

    def publish(self, name: str) -> None:
        assert (self._path / name).exists()
        self.published.append(name)

    def progress(self, **fields: Any) -> None:
        self.events.append(fields)

    def log(self, message: str) -> None:
        self.logged.append(message)

    def artifact(self) -> "FakeArtifact":
        return FakeArtifact(self._path)


class FakeArtifact(Directory):
    key = "0" * 64

    def path(self, name: str = ".") -> Path:
        return self._path / name

    def names(self, pattern: str = "*") -> list[str]:
        return [p.name for p in self._path.iterdir() if fnmatch.fnmatch(p.name, pattern)]


class RetriedArtifact(FakeArtifact):
    """The same artifact with its files stored as a second attempt stores them: each as `name~2`."""

    def __init__(self, artifact: FakeArtifact, folder: Path) -> None:
        super().__init__(folder)
        self._plain = artifact.path()
        for file in self._plain.rglob("*"):
            if file.is_file():
                stored = folder / f"{file.relative_to(self._plain)}~2"
                stored.parent.mkdir(parents=True, exist_ok=True)
                stored.write_bytes(file.read_bytes())

    def path(self, name: str = ".") -> Path:
        """As a real artifact: the stored file, or a directory in which every file has its own name."""
        return self._plain / name if (self._plain / name).is_dir() else self._path / f"{name}~2"
