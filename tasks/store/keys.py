"""The key of an artifact: what it is made from, as canonical JSON, hashed.

The same payload gives the same key in every process and Python version, and two payloads that mean the same number
(`0.02` and `0.020`, `12` and `12.0`) give the same key. What has no canonical form (a set, NaN, an object) raises:
a key that silently left something out would reuse the wrong artifact.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from tasks.stage import InputError, Stage
from tasks.store.contents import contents
from tasks.store.secrets import redact_url


def canonical(value: Any, where: str = "value") -> Any:
    """`value` as JSON types in one form; raises InputError naming the path of what has none."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return redact_url(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{where} is {value}: a key needs finite numbers.")
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [canonical(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise InputError(f"{where} has the key {name!r}: a key needs mappings from text.")
        return {name: canonical(value[name], f"{where}.{name}") for name in sorted(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: canonical(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
    raise InputError(
        f"{where} is a {type(value).__name__}, which has no canonical JSON form: "
        "use numbers, text, lists or mappings of them."
    )


def dumps(value: Any) -> str:
    """Canonical JSON text of `value`: sorted, without spaces, ASCII."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def config_fields(stage: Stage, config: Any) -> dict[str, Any]:
    """What the stage `reads`: dotted path → canonical value, without what is `runtime` below it; and what lies in its
    `files`."""
    found: dict[str, Any] = {}
    for path in stage.reads:
        found[path] = _without_runtime(canonical(attrgetter(path)(config), path), path, stage.runtime)
    return found | contents(stage, config)


def _without_runtime(value: Any, path: str, runtime: tuple[str, ...]) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: _without_runtime(item, f"{path}.{name}", runtime)
        for name, item in value.items()
        if f"{path}.{name}" not in runtime
    }


def payload(stage: Stage, config: Any, inputs: Mapping[str, str], source: str | None = None) -> dict[str, Any]:
    """What is hashed. `inputs`: role → key. `source`: the source closure's hash, under `store.strict_code` alone."""
    check_roles(stage, inputs)
    found: dict[str, Any] = {
        "stage": stage.name,
        "version": stage.version,
        "config": config_fields(stage, config),
        "inputs": dict(sorted(inputs.items())),
    }
    return found | ({"source": source} if source else {})


def digest(content: Any) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `content`."""
    return hashlib.sha256(dumps(content).encode("ascii")).hexdigest()


def check_roles(stage: Stage, inputs: Mapping[str, Any]) -> None:
    """Raise InputError unless `inputs` has the stage's roles, no more and no fewer."""
    missing = set(stage.inputs) - set(stage.optional) - set(inputs)
    foreign = set(inputs) - set(stage.inputs) - set(stage.optional)
    if missing or foreign:
        raise InputError(
            f"Stage '{stage.name}' takes the inputs {', '.join(stage.inputs + stage.optional) or 'none'}; "
            f"it got {', '.join(sorted(inputs)) or 'none'}."
        )
