"""The manifest: the file whose existence makes an artifact exist, and the checks that make it believable."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tasks.stage import InputError
from tasks.store import keys

NAME = "manifest.json"
FORMAT = 1


class Damaged(InputError):
    """Stored data that must not be used. The sentence names artifact, file and remedy."""


@dataclass(frozen=True)
class FileEntry:
    """One file. `path` is where it lies below the artifact's directory: its name, or `name~attempt` (see workspace)."""

    path: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything known of an artifact. `config` and `inputs` are exactly what the key was made from."""

    stage: str
    version: int
    key: str
    config: dict[str, Any]  # dotted path → value
    inputs: dict[str, dict[str, str]]  # role → {"stage", "key"}
    files: dict[str, FileEntry]  # name → entry
    metrics: dict[str, Any] = field(default_factory=dict)
    wall_seconds: float = 0.0  # of all attempts
    attempts: int = 1
    finished_at: str = ""  # UTC, ISO 8601
    owner: str = ""  # of the lease under which it was written
    source: str = ""  # hash of the source closure
    sources: dict[str, str] = field(default_factory=dict)  # file → sha256
    strict_code: bool = False  # whether `source` is part of the key
    commit: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    run_info: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def recomputed_key(self) -> str:
        """The key that `stage`, `version`, `config` and `inputs` give; equal to `key` in a manifest of our own."""
        content: dict[str, Any] = {"stage": self.stage, "version": self.version, "config": self.config}
        content["inputs"] = {role: made["key"] for role, made in self.inputs.items()}
        return keys.digest(content | ({"source": self.source} if self.strict_code else {}))

    def to_bytes(self) -> bytes:
        """Indented JSON, UTF-8; the same bytes for the same manifest."""
        return (json.dumps(asdict(self), indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def parse(data: bytes, where: str) -> Manifest:
    """A manifest from bytes; raises Damaged unless it is complete and of this format."""
    try:
        plain = json.loads(data)
        if plain["format"] != FORMAT:
            raise Damaged(f"{where}/{NAME} has format {plain['format']}, this version reads {FORMAT}: use a new root.")
        plain["files"] = {name: FileEntry(**entry) for name, entry in plain["files"].items()}
        known = {f.name for f in fields(Manifest)}
        return Manifest(**{name: value for name, value in plain.items() if name in known})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{where}/{NAME} cannot be read ({type(error).__name__}): {remedy(where)}") from error


def check_belongs(manifest: Manifest, stage: str, key: str) -> None:
    """Raise Damaged unless the manifest was made for the directory `<stage>/<key>` that it lies in."""
    where = f"{stage}/{key}"
    if (manifest.stage, manifest.key) != (stage, key):
        raise Damaged(f"{where} holds the manifest of {manifest.stage}/{manifest.key}: {remedy(where)}")
    if manifest.recomputed_key() != key:
        raise Damaged(f"{where} has a manifest whose config and inputs give another key: {remedy(where)}")


def check_present(manifest: Manifest, sizes: Mapping[str, int]) -> None:
    """Raise Damaged unless every file is there with its size. `sizes`: path below the directory → bytes."""
    where = f"{manifest.stage}/{manifest.key}"
    for name, entry in manifest.files.items():
        if entry.path not in sizes:
            raise Damaged(f"{where} lacks its file {name}: {remedy(where)}")
        if sizes[entry.path] != entry.size:
            raise Damaged(f"{where}: {name} has {sizes[entry.path]} bytes instead of {entry.size}: {remedy(where)}")


def remedy(where: str) -> str:
    """The end of every sentence about damage."""
    return f"run 'python -m tasks.store repair {where}', then the same command again."
