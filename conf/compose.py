"""From command-line words to a validated `Config`; every fault is one sentence, found before anything is written."""

import difflib
import functools
import json
import re
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import hydra
import pydantic
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.errors import ConfigError, did_you_mean
from conf.resolve import resolve
from conf.schema import Config
from conf.sizing import check

CONF = Path(__file__).parent


def compose(overrides: Sequence[str] = ()) -> Config:
    """The config that `overrides` describe, in Hydra's grammar (`scale=d4`, `base.steps=200`).

    Raises ConfigError with one sentence. Composes in the calling thread and leaves no Hydra state behind, since
    Hydra's registry is a process-wide singleton (KNOWN_FAILURES B21).
    """
    words = [schema_word(override) for override in parse(overrides)]
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            composed = hydra.compose("config", overrides=words)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"The configuration cannot be composed: {first_line(error)}") from error
    return check(resolve(validate(plain)))


def validate(plain: Any) -> Config:
    """`plain` (nested dicts and lists) as a Config; raises ConfigError naming the first bad field."""
    missing = sorted(_missing(plain, ""))
    if missing:
        raise ConfigError(f"{missing[0]} is not set: give it as {missing[0]}=… on the command line.")
    try:
        return pydantic.TypeAdapter(Config).validate_json(json.dumps(plain), strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], plain)) from error


def to_plain(config: Config) -> dict[str, Any]:
    """The config as JSON values; `validate(to_plain(config)) == config`."""
    return pydantic.TypeAdapter(Config).dump_python(config, mode="json")


def parse(overrides: Sequence[str]) -> list[Override]:
    """Hydra's own parse of each word, or a ConfigError that shows how to quote it."""
    parsed = []
    for word in overrides:
        try:
            parsed += OverridesParser.create().parse_overrides([word])
        except HydraException as error:
            key, equals, value = word.partition("=")
            remedy = f"write '{key}=\"{value}\"'" if equals else "write it as key=value"
            raise ConfigError(f"Override {word!r} cannot be read: {remedy}.") from error
    for word, override in zip(overrides, parsed, strict=True):
        if override.is_sweep_override():
            key, _, value = word.partition("=")
            raise ConfigError(
                f"Override {word!r} asks for a sweep; a list is written '{key}=[{value}]' "
                f"and a text with commas '{key}=\"{value}\"'."
            )
    return parsed


def schema_word(override: Override) -> str:
    """The override as Hydra is to see it; raises ConfigError unless it names a group or a field of the schema.

    The YAML files hold only what differs from the schema's defaults, so a known field is added where it is absent
    (`++`), whether or not the user wrote `+`.
    """
    name = override.key_or_group
    word = (override.input_line or "").lstrip("+")
    groups = {path.name for path in CONF.iterdir() if path.is_dir() and any(path.glob("*.yaml"))}
    if name in groups - {"prompts"} and isinstance(override.value(), str):
        choices = sorted(path.stem for path in (CONF / name).glob("*.yaml"))
        if override.value() not in choices:
            hint = did_you_mean(str(override.value()), choices)
            raise ConfigError(f"{name}={override.value()} does not exist: choose one of {', '.join(choices)}.{hint}")
        return word
    known = field_paths(Config)
    if name not in known:
        raise ConfigError(f"There is no field '{name}'.{did_you_mean(name, _near_first(name, known))}")
    if override.is_delete():
        raise ConfigError(f"'{name}' cannot be deleted: give it the value null or another one.")
    return f"++{word}"


@functools.cache
def field_paths(schema: type, prefix: str = "") -> dict[str, Any]:
    """Every dotted field path of a dataclass tree with its type: `{"base": BaseConfig, "base.steps": int, …}`."""
    hints = typing.get_type_hints(schema)
    found: dict[str, Any] = {}
    for item in fields(schema):
        path, hint = prefix + item.name, hints[item.name]
        found[path] = hint
        if is_dataclass(hint):
            found |= field_paths(typing.cast(type, hint), path + ".")
    return found


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, ended with one full stop."""
    return str(error).strip().splitlines()[0].rstrip(".") + "." if str(error).strip() else type(error).__name__ + "."


def _near_first(name: str, known: typing.Iterable[str]) -> list[str]:
    """Candidates for a wrong path: the same word in another section, else a near word of its section, else all."""
    section, _, word = name.rpartition(".")
    same = [path for path in known if path.rpartition(".")[2] == word]
    siblings = [path for path in known if path.rpartition(".")[0] == section]
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.7)
    return near or difflib.get_close_matches(name, same, n=1, cutoff=0.0) or list(known)


def _missing(value: Any, path: str) -> list[str]:
    if isinstance(value, dict):
        return [m for key, item in value.items() for m in _missing(item, f"{path}.{key}" if path else str(key))]
    return [path] if value == "???" else []


def _sentence(problem: Any, plain: Any) -> str:
    """One pydantic problem as a sentence that names the field as a user writes it."""
    where = [part for part in problem["loc"] if isinstance(part, int) or not str(part).startswith("function-")]
    where = [part for part in where if not isinstance(part, str) or part.isidentifier()]
    path = ".".join(str(part) for part in where)
    value = problem.get("input")
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = list(field_paths(Config))
        return f"There is no field '{path}'.{did_you_mean(path, _near_first(path, known))}"
    if problem["type"] in ("missing", "missing_argument"):
        return f"{path} is not set: give it as {path}=… on the command line."
    if problem["type"] == "string_type" and isinstance(value, int | float):
        return f"{path} was read as the number {value}; quote it: '{path}=\"…\"'."
    if problem["type"] == "string_pattern_mismatch" and problem["ctx"]["pattern"].startswith("^[a-z]"):
        return f"{path}={value!r} is not a valid name: it starts with a lower-case letter, then letters, digits, . _ -"
    near = did_you_mean(value, re.findall("'([^']*)'", problem["msg"])) if problem["type"] == "literal_error" else ""
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    shown = "" if isinstance(value, dict | list) else f"={value}"
    return f"{path}{shown}: {message[0].lower()}{message[1:]}.{near}"
