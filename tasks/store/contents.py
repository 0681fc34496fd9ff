"""What lies in the local files that a config names, so that a file edited under the same name is another input.

A stage declares such config paths as `files`. Every file that they mean is read and hashed: the name and the time of a
file say nothing about its bytes, and a run that silently reused yesterday's text is the kind of fault that is found
weeks later. The price is one pass over local inputs for each start (about 1 GB/s; a corpus worth more than that lies
in a bucket). A remote address stands for its content, which is not looked at.
"""

import glob
import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from tasks.stage import STAGES, Stage, declaration
from tasks.store.gather import parallel


def contents(stage: Stage, config: Any) -> dict[str, dict[str, str]]:
    """`<config path> content` → {file as the config names it: sha256}; without files, no entry."""
    found = {}
    for path, texts in _named(stage, config):
        names = sorted({name for text in texts for name in local_files(text)})
        if names:
            found[f"{path} content"] = dict(zip(names, parallel(_checksum, names), strict=True))
    return found


def missing(config: Any) -> list[str]:
    """One sentence for every local path that some stage will read and that is not there; cheap, so ask it first."""
    return [
        f"{path}: {text} matches no file (looked in {Path.cwd()})."
        for name in STAGES
        for path, texts in _named(declaration(name), config)
        for text in texts
        if not is_address(text) and next(local_files(text), None) is None
    ]


def is_address(text: str) -> bool:
    """Whether a path of the config means no local file: an address, or the sample world."""
    return "://" in text or text == "world"


def local_files(text: str) -> Iterator[str]:
    """The files that a path, a glob or a directory means here; none for an address or a path that is not there."""
    if is_address(text):
        return
    expanded = str(Path(text).expanduser())
    matches = [expanded] if Path(expanded).exists() else sorted(glob.glob(expanded, recursive=True))
    for match in map(Path, matches):
        if match.is_file():
            yield str(match)
        elif match.is_dir():
            yield from (str(path) for path in match.rglob("*") if path.is_file())


def _named(stage: Stage, config: Any) -> Iterator[tuple[str, list[str]]]:
    for path in stage.files:
        yield path, list(_texts(attrgetter(path)(config)))


def _texts(value: Any) -> Iterable[str]:
    """The paths in a config value: text, a list, or items that have a `path`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    return [value.path] if hasattr(value, "path") else []


def _checksum(name: str) -> str:
    stat = Path(name).stat()
    return _read(name, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=100_000)
def _read(name: str, _size: int, _mtime_ns: int) -> str:
    with open(name, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
