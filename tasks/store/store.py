"""The store: artifacts by stage and key, hit or miss and why.

Only the manifest decides whether an artifact exists, and it is checked before it counts: that it belongs where it
lies, and that every file is there with its size. Checksums are compared when a file is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks import stage as stages
from tasks.stage import InputError
from tasks.store import keys, sources
from tasks.store import manifest as manifests
from tasks.store.artifact import Artifact
from tasks.store.cache import ReadCache
from tasks.store.gather import parallel
from tasks.store.lease import Clock
from tasks.store.local import LocalRoot
from tasks.store.manifest import Damaged, Manifest
from tasks.store.roots import open_root

GIB = 2**30
COMPARED = 32
"""Artifacts of a stage that are looked at to explain a miss."""


@dataclass(frozen=True)
class Located:
    """What the store knows of one stage under one config: its key, and the artifact or why there is none."""

    stage: str
    key: str
    state: str  # "hit", "miss" or "damaged"
    reason: str  # for people: which files changed since, which field differs, what is damaged
    artifact: Artifact | None = None
    changed_files: list[str] = field(default_factory=list)  # source files that differ from when it was made
    strict: bool = False  # whether the source closure is part of the key

    @property
    def hit(self) -> bool:
        """Whether running the stage would return at once."""
        return self.state == "hit"


class Store:
    """Artifacts at `<root>/<stage>/<key>/`. Opening one touches nothing; `check` tries whether the root can be used."""

    def __init__(
        self,
        root: str | Path,
        *,
        cache_dir: str | Path = "~/.cache/encore",
        cache_gib: float = 100.0,
        lease_seconds: float = 60.0,
        strict_code: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.root = open_root(str(root))
        self.cache_dir = Path(cache_dir).expanduser()
        self.cache_gib, self.lease_seconds, self.strict_code = cache_gib, lease_seconds, strict_code
        self.clock = clock or Clock()
        self.cache = ReadCache(self.cache_dir / "files", int(cache_gib * GIB))

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> "Store":
        """The store at a local directory or `gs://bucket/prefix`; options as of the constructor."""
        return cls(root, **options)

    @classmethod
    def from_config(cls, section: Any) -> "Store":
        """The store that the config's `store` section describes."""
        return cls(
            section.root,
            cache_dir=section.cache_dir,
            cache_gib=section.cache_gib,
            lease_seconds=section.lease_seconds,
            strict_code=section.strict_code,
        )

    def options(self) -> dict[str, Any]:
        """What a child process needs to open the same store: `Store(**options)`."""
        return {
            "root": self.root.url,
            "cache_dir": str(self.cache_dir),
            "cache_gib": self.cache_gib,
            "lease_seconds": self.lease_seconds,
            "strict_code": self.strict_code,
        }

    def check(self) -> None:
        """Raise InputError in one sentence if the root refuses to be read and written. Call it before any work."""
        self.root.check()

    def artifact(self, stage: str, key: str) -> Artifact:
        """The artifact, checked; InputError if there is none, Damaged if it must not be used."""
        found = self.lookup(stage, key)
        if found is None:
            raise InputError(f"{self.root.url} has no artifact {stage}/{key}: run the stage that makes it.")
        return found

    def lookup(self, stage: str, key: str) -> Artifact | None:
        """The artifact, or None if it was never finished; raises Damaged if it is there but must not be used."""
        manifest = self.manifest(stage, key)
        if manifest is None:
            return None
        found = self.root.find(f"{stage}/{key}")
        manifests.check_present(manifest, {path: item.size for path, item in found.items()})
        return Artifact(manifest, self.root, self.cache)

    def manifest(self, stage: str, key: str) -> Manifest | None:
        """The manifest if there is one and it belongs there; its files are not looked at. Raises Damaged."""
        try:
            data = self.root.read(f"{stage}/{key}/{manifests.NAME}")
        except FileNotFoundError:
            return None
        manifest = manifests.parse(data, f"{stage}/{key}")
        manifests.check_belongs(manifest, stage, key)
        return manifest

    def keys(self, stage: str) -> list[str]:
        """Keys below a stage's directory, finished or not."""
        return self.root.folders(stage)

    def work_directory(self, where: str) -> Path:
        """The local folder of the attempts at the key `stage/key`; on the root's own filesystem if that is local."""
        if isinstance(self.root, LocalRoot):
            return self.root.directory / LocalRoot.WORK / where
        return self.cache_dir / "work" / keys.digest(self.root.url)[:16] / where

    def locate(self, stage_name: str, config: Any, inputs: Mapping[str, str]) -> Located:
        """Hit or miss for a stage under a config; `inputs`: role → key. Writes nothing.

        Under `strict_code` an artifact made by other source files is left alone and does not count: the key then holds
        the source closure too, so everything that is made from it gets a new key as well.
        """
        stage = stages.declaration(stage_name)
        payload = keys.payload(stage, config, inputs)
        plain = key = keys.digest(payload)
        now = sources.cached_closure(stages.module_name(stage_name))
        try:
            manifest = self.manifest(stage.name, key)
            if self.strict_code and manifest and manifest.source != sources.combined(now):
                key = keys.digest(keys.payload(stage, config, inputs, source=sources.combined(now)))
            artifact = self.lookup(stage.name, key)
        except Damaged as error:
            return Located(stage.name, key, "damaged", str(error), strict=key != plain)
        if artifact is None:
            return Located(stage.name, key, "miss", self._why_miss(stage.name, payload), strict=key != plain)
        changed = sources.changed(artifact.manifest.sources, now)
        note = f"{len(changed)} source file{'s' if len(changed) > 1 else ''} changed since" if changed else "same code"
        return Located(stage.name, key, "hit", note, artifact, changed, key != plain)

    def sound_manifest(self, stage: str, key: str) -> Manifest | None:
        """The manifest, or None if there is none or a damaged one."""
        try:
            return self.manifest(stage, key)
        except Damaged:
            return None

    def _why_miss(self, stage: str, payload: dict[str, Any]) -> str:
        """What distinguishes `payload` from the nearest artifact of the stage."""
        known = parallel(lambda key: self.sound_manifest(stage, key), self.keys(stage)[-COMPARED:])
        differences = [_differences(manifest, payload) for manifest in known if manifest]
        if not differences:
            return "never made here"
        nearest = min(differences, key=len)
        return "differs in " + ", ".join(nearest[:4]) + (f" and {len(nearest) - 4} more" if len(nearest) > 4 else "")


def _differences(manifest: Manifest, payload: dict[str, Any]) -> list[str]:
    found = [] if manifest.version == payload["version"] else [f"version {manifest.version} → {payload['version']}"]
    for path in sorted({*manifest.config, *payload["config"]}):
        found += _leaf_differences(path, manifest.config.get(path), payload["config"].get(path))
    theirs = {role: made["key"] for role, made in manifest.inputs.items()}
    return found + [f"input {role}" for role in payload["inputs"] if theirs.get(role) != payload["inputs"][role]]


def _leaf_differences(path: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            d
            for name in sorted({*old, *new})
            for d in _leaf_differences(f"{path}.{name}", old.get(name), new.get(name))
        ]
    shown = f" {old} → {new}"
    return [path + (shown if len(shown) < 40 else "")]
