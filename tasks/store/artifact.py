"""A finished artifact, for reading: every file is verified before its path is handed out."""

import fnmatch
import tempfile
from pathlib import Path

from tasks.store.cache import ReadCache
from tasks.store.gather import parallel
from tasks.store.local import LocalRoot
from tasks.store.manifest import Damaged, Manifest, remedy
from tasks.store.roots import Root, sha256_file


class Artifact:
    """What a stage made. `path(name)` gives a verified local file, `names(pattern)` lists them."""

    def __init__(self, manifest: Manifest, root: Root, cache: ReadCache) -> None:
        self.manifest = manifest
        self.stage, self.key = manifest.stage, manifest.key
        self._root, self._cache = root, cache
        self._verified: set[str] = set()

    def __repr__(self) -> str:
        return f"<artifact {self.stage}/{self.key[:12]}>"

    @property
    def where(self) -> str:
        """`stage/key`, as the command line of `tasks.store` takes it."""
        return f"{self.stage}/{self.key}"

    def names(self, pattern: str = "*") -> list[str]:
        """Names of the files that match, sorted; `*` also matches `/`."""
        return sorted(fnmatch.filter(self.manifest.files, pattern))

    def path(self, name: str = ".") -> Path:
        """A local file with the content of `name`, or with "." (or a folder's name) a directory with all files below.

        Raises Damaged, naming artifact, file and remedy, if the bytes are not those of the manifest, and KeyError if
        the artifact has no such file. Do not write to what you get.
        """
        if name in self.manifest.files:
            return self._file(name)
        prefix = "" if name == "." else name.rstrip("/") + "/"
        below = [known for known in self.manifest.files if known.startswith(prefix)]
        if not below:
            raise KeyError(f"{self.where} has no file '{name}'; it has {', '.join(self.names()[:8])}.")
        return self._tree(below) / ("" if name == "." else name)

    def verify(self) -> None:
        """Read every stored file, not a local copy of it; raises Damaged at one whose checksum differs."""
        if isinstance(self._root, LocalRoot):
            self._verified.clear()
            parallel(self._file, self.names())
            return
        self._cache.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._cache.directory, prefix="verify-") as folder:

            def check(name: str) -> None:
                path = Path(folder, name)
                self._fetch(name, path)
                path.unlink()

            parallel(check, self.names())

    def _file(self, name: str) -> Path:
        entry = self.manifest.files[name]
        if not isinstance(self._root, LocalRoot):
            return self._cache.get(entry, lambda path: self._fetch(name, path))
        path = self._root.path(f"{self.where}/{entry.path}")
        if name not in self._verified:
            if not path.is_file():
                raise self._lacks(name)
            self._check(name, path)
            self._verified.add(name)
        return path

    def _fetch(self, name: str, path: Path) -> None:
        """Bring a stored file to `path` and check it."""
        try:
            self._root.fetch(f"{self.where}/{self.manifest.files[name].path}", path)
        except FileNotFoundError as error:
            raise self._lacks(name) from error
        self._check(name, path)

    def _check(self, name: str, path: Path) -> None:
        entry = self.manifest.files[name]
        if path.stat().st_size != entry.size or sha256_file(path) != entry.sha256:
            raise Damaged(f"{self.where}: {name} does not have the checksum of its manifest: {remedy(self.where)}")

    def _lacks(self, name: str) -> Damaged:
        return Damaged(f"{self.where} lacks its file {name}: {remedy(self.where)}")

    def _tree(self, names: list[str]) -> Path:
        """A directory in which every file has its own name, by hard links to verified copies."""
        plain = all(self.manifest.files[name].path == name for name in names)
        paths = dict(zip(names, parallel(self._file, names), strict=True))
        if plain and isinstance(self._root, LocalRoot):
            return self._root.path(self.where)
        return self._cache.tree(self.where, paths)
