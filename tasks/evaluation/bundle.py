"""An evaluation bundle laid out as nanochat's: core.yaml, eval_meta_data.csv and eval_data/.

It may be a directory or a zip, here, at gs:// or at https://; inside a zip it may lie in a folder. Only files of tasks
that are asked for are fetched. Whatever does not fit the format is an error with file, line and what belongs there.
"""

import csv
import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from conf.errors import ConfigError, did_you_mean
from model.score import KINDS, Task, shuffled
from tasks.fetch import fetch, is_remote, suffixes
from tasks.reading import json_lines
from tasks.stage import InputError, StopSignal

FIELDS: dict[str, dict[str, type]] = {
    "multiple_choice": {"query": str, "choices": list, "gold": int},
    "schema": {"context_options": list, "continuation": str, "gold": int},
    "language_modeling": {"context": str, "continuation": str},
}
OPTIONS = {"multiple_choice": "choices", "schema": "context_options"}
"""Fields of an example by kind of task, and the one that holds what is chosen among."""


@dataclass(frozen=True)
class Source:
    """A task and where its examples are."""

    task: Task
    name: str  # as messages call the file
    path: Path

    def examples(self) -> list[dict[str, Any]]:
        """The examples in CORE's order, checked; raises InputError."""
        found = [_checked(self.task, value, f"{self.name}:{line}") for line, value in json_lines(self.path, self.name)]
        if not found:
            raise InputError(f"{self.name} holds no example: remove task '{self.task.label}' from core.yaml.")
        return shuffled(found)

    def digest(self) -> str:
        """sha256 of the file: two runs compare on a task only if this is the same."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def open_bundle(location: str, labels: list[str] | None, scratch: Path, stop: StopSignal) -> list[Source]:
    """The tasks of the bundle at `location` in its own order, or those of them that `labels` names.

    scratch: folder for copies. Raises ConfigError for an unknown label and InputError for everything else.
    """
    local = _opener(location.rstrip("/"), scratch, stop)
    entries = _tasks(local("core.yaml"), _baselines(local("eval_meta_data.csv"), location), location)
    if labels is not None:
        for label in labels:
            if label not in entries:
                raise ConfigError(f"eval.tasks: {location} has no task '{label}'.{did_you_mean(label, entries)}")
        entries = {label: entry for label, entry in entries.items() if label in labels}
    return [Source(task, uri, local(f"eval_data/{uri}")) for task, uri in entries.values()]


def _opener(location: str, scratch: Path, stop: StopSignal) -> Callable[[str], Path]:
    """A function from a name in the bundle to a local file."""
    if suffixes(location).endswith(".zip"):
        return _Zip(fetch(location, scratch, stop), location, scratch / "unzipped").extract
    if is_remote(location):
        return lambda name: fetch(f"{location}/{name}", scratch, stop)
    directory = Path(location).expanduser()

    def local(name: str) -> Path:
        if not (path := directory / name).is_file():
            raise InputError(f"eval.bundle={location} has no file {name}: it must hold core.yaml and eval_data/.")
        return path

    return local


class _Zip:
    """A zipped bundle; members are written out when they are asked for."""

    def __init__(self, path: Path, location: str, folder: Path) -> None:
        self._location, self._folder = location, folder
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"eval.bundle={location} is not a readable zip ({error}).") from error
        indexes = [name for name in self._zip.namelist() if PurePosixPath(name).name == "core.yaml"]
        if not indexes:
            raise InputError(f"eval.bundle={location} holds no core.yaml: it is no evaluation bundle.")
        self._base = PurePosixPath(min(indexes, key=len)).parent

    def extract(self, name: str) -> Path:
        """The member as a local file; zipfile checks its checksum on the way."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.write_bytes(self._zip.read(str(self._base / name)))
        except (KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"eval.bundle={self._location}: {name} cannot be read from the zip ({error}).") from error
        return target


def _tasks(path: Path, baselines: Mapping[str, float], location: str) -> dict[str, tuple[Task, str]]:
    """Label → task and the place of its examples below eval_data/, from core.yaml."""
    where = f"{location}: core.yaml"
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["icl_tasks"]
        found: dict[str, tuple[Task, str]] = {}
        for entry in entries:
            label, shots = str(entry["label"]), entry["num_fewshot"]
            kind, uri = entry["icl_task_type"], PurePosixPath(entry["dataset_uri"])
            if label not in baselines:
                raise InputError(f"{where}: task '{label}' has no 'Random baseline' in eval_meta_data.csv.")
            if kind not in KINDS:
                raise InputError(f"{where}: task '{label}' is of type {kind!r}; it must be one of {', '.join(KINDS)}.")
            if uri.is_absolute() or ".." in uri.parts:
                raise InputError(f"{where}: dataset_uri {uri} of task '{label}' leads out of the bundle.")
            if label in found:
                raise InputError(f"{where}: task '{label}' comes twice.")
            # a list means several tasks in the original harness; nanochat takes its first number
            shots = int(shots[0] if isinstance(shots, list) else shots)
            delimiter = str(entry.get("continuation_delimiter", " "))
            found[label] = Task(label, kind, shots, delimiter, baselines[label]), str(uri)
        return found
    except (yaml.YAMLError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{where} is not a list icl_tasks of tasks ({type(error).__name__}: {error}).") from error


def _baselines(path: Path, location: str) -> dict[str, float]:
    """Label → accuracy of guessing, as a share, from eval_meta_data.csv (which has it in per cent)."""
    where = f"{location}: eval_meta_data.csv"
    try:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        shares = {row["Eval Task"]: float(row["Random baseline"]) / 100 for row in rows}
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(
            f"{where} needs the columns 'Eval Task' and 'Random baseline', the latter a number ({error})."
        ) from error
    for label, share in shares.items():
        if not 0 <= share < 1:
            raise InputError(
                f"{where}: the random baseline of '{label}' is {100 * share:g} %, not from 0 to below 100."
            )
    return shares


def _checked(task: Task, example: Any, where: str) -> dict[str, Any]:
    """The example if it has what its kind of task needs; raises InputError."""
    if not isinstance(example, dict):
        raise InputError(f"{where}: not an object but {type(example).__name__}.")
    for name, kind in FIELDS[task.kind].items():
        if not isinstance(example.get(name), kind) or isinstance(example[name], bool):
            raise InputError(f"{where}: a {task.kind} example needs '{name}' of type {kind.__name__}.")
    if options := OPTIONS.get(task.kind):
        if not all(isinstance(option, str) for option in example[options]):
            raise InputError(f"{where}: '{options}' must hold texts only.")
        if not 0 <= example["gold"] < len(example[options]):
            raise InputError(f"{where}: 'gold' is {example['gold']}, but there are {len(example[options])} {options}.")
    return example
