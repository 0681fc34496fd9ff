"""The part of the config that a stage declared, and nothing else.

A field that shapes the output but is missing from the key makes a wrong reuse months later. So reading an undeclared
field is an error at once, with the line to write.
"""

from typing import Any

from tasks.stage import Stage


class UndeclaredField(Exception):
    """A stage read a config field that it declares neither in `reads` nor in `runtime`: a fault of the stage."""


class ConfigView:
    """`config` restricted to the paths that `stage` declares; a declared section comes as itself, unrestricted."""

    def __init__(self, config: Any, stage: Stage, prefix: str = "") -> None:
        self.__dict__.update(_config=config, _stage=stage, _prefix=prefix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._prefix}{name}"
        value = getattr(self._config, name)
        declared = self._stage.reads + self._stage.runtime
        if any(path == known or path.startswith(known + ".") for known in declared):
            return value
        if any(known.startswith(path + ".") for known in declared):
            return ConfigView(value, self._stage, path + ".")
        raise UndeclaredField(
            f"Stage '{self._stage.name}' reads config.{path}, which its STAGE does not declare: "
            f"add '{path}' to reads (it shapes the output) or to runtime (it cannot change the bytes)."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError("A config is read-only.")

    def __repr__(self) -> str:
        return f"<config of stage {self._stage.name}: {', '.join(self._stage.reads + self._stage.runtime)}>"
