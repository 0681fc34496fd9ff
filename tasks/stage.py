"""What a stage is: a name, what it reads, and a function `run(config, inputs, out) -> metrics`.

Each stage is one module with a `STAGE` and a `run`. This module only describes stages and finds them by name; running
one, and deciding whether it has run, is `tasks.store`'s part.
"""

import ast
import importlib
import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

STAGES = (
    *("corpus", "tokenizer", "shards", "base", "conversations", "sft"),
    *("core", "chat", "prompts", "report", "export"),
)
"""The stages of the cycle; each is the module `tasks.<name>`. A dotted module name with a `STAGE` is accepted too."""


class InputError(Exception):
    """Input or surroundings that cannot work: one sentence with what, where and the remedy. Never retried."""


class Preempted(Exception):
    """The stage stopped because it was asked to, after saving what it had. Run it again to continue."""


class StopSignal:
    """Whether this attempt has been asked to stop (SIGTERM, preemption notice, vanished parent). Thread-safe."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    @property
    def requested(self) -> bool:
        """True once a stop was asked for; a stage then saves, and leaves through `check`."""
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """Ask for a stop; the first reason is the one that is kept."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def check(self) -> None:
        """Raise Preempted if a stop was asked for. Call it where nothing unsaved would be lost."""
        if self.requested:
            raise Preempted(self.reason)

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a stop is asked for; returns `requested`."""
        return self._event.wait(seconds)


@dataclass(frozen=True)
class Stage:
    """The declaration of a stage.

    reads: dotted config paths whose values enter the key. runtime: paths that may be read too but cannot change the
    bytes; one below a path of `reads` is left out of the key. files: those of `reads` that name local files, whose
    content enters the key too. inputs: role names, `optional` ones may be missing.
    resumable: files published by an earlier attempt are kept for the next one. accelerator: uses JAX devices, so the
    compilation cache is set up before `run`. all_hosts: the hosts of a job run it together (`tasks.hosts`); any other
    stage runs on the first one. version: raised when the output changes its meaning.
    """

    name: str
    version: int
    reads: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    resumable: bool = False
    accelerator: bool = False
    all_hosts: bool = False


def module_name(stage_name: str) -> str:
    """The dotted module of a stage; raises InputError with the known names."""
    if stage_name in STAGES:
        return f"tasks.{stage_name}"
    if "." not in stage_name:
        raise InputError(f"There is no stage '{stage_name}': choose one of {', '.join(STAGES)}.")
    return stage_name


def load(stage_name: str) -> tuple[Stage, Callable]:
    """The declaration and the `run` function of a stage; imports its module."""
    module: ModuleType = importlib.import_module(module_name(stage_name))
    return module.STAGE, module.run


def declaration(stage_name: str) -> Stage:
    """The declaration alone, read from the source so that the module and what it imports (jax) stay unloaded.

    It must be one literal call: text, numbers, tuples and sums of tuples.
    """
    name = module_name(stage_name)
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise InputError(f"Stage '{stage_name}' has no module {name}.")
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and any(isinstance(target, ast.Name) and target.id == "STAGE" for target in node.targets)
        ):
            keywords = {word.arg: _literal(word.value) for word in node.value.keywords if word.arg}
            return Stage(*[_literal(value) for value in node.value.args], **keywords)
    raise InputError(f"Module {name} declares no STAGE = Stage(…).")


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _literal(node.left) + _literal(node.right)
    return ast.literal_eval(node)
