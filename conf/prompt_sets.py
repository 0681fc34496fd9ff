"""The files of qualitative prompts, `conf/prompts/<name>.yaml`, by the names that `prompts.sets` gives
them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from conf.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parent / "prompts"
WORLD = "world"  # the set that the sample world generates; it has no file


def read(name: str) -> list[dict[str, Any]]:
    """The prompts of a set, each with `id`, `messages` and `judges`; the file's `always` judges come first
    in all.

    ConfigError for a set that does not exist or a file of another form.
    """
    path = _path(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        always = list(content.get("always", []))
        return [
            {"id": p["id"], "messages": p["messages"], "judges": always + list(p.get("judges", []))}
            for p in content["prompts"]
        ]
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no set of prompts ({type(error).__name__}: {' '.join(str(error).split())}): it needs "
            "`prompts`, a list of id, messages and judges."
        ) from error


def digest(names: Sequence[str]) -> str:
    """A hash of what the named files hold; ConfigError for a name without a file."""
    found = hashlib.sha256()
    for name in names:
        if name != WORLD:
            found.update(_path(name).read_bytes())
    return found.hexdigest()[:16]


def _path(name: str) -> Path:
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = [*sorted(p.stem for p in FOLDER.glob("*.yaml")), WORLD]
        raise ConfigError(
            f"prompts.sets names '{name}', which is none of {', '.join(known)}.{did_you_mean(name, known)}"
        )
    return path
