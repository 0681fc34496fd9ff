"""Which of this project's source files a stage is made of: its module and, transitively, what it imports from here.

Code is not part of a key (a comment must not cost a training run), but the closure's hash is kept in the manifest, so
that a plan can say "reused; three files changed since", and `store.strict_code` can turn that into a miss.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
OURS = ("model", "tasks", "conf")
"""Top-level packages that can shape an artifact's bytes. `tasks.store` moves bytes about and is left out."""


def closure(module: str, *, project: Path = PROJECT) -> dict[str, str]:
    """File relative to `project` → sha256, for `module` and every first-party module that it imports anywhere."""
    found: dict[str, str] = {}
    queue = [module]
    seen: set[str] = set()
    while queue:
        name = queue.pop()
        if name in seen or name.startswith("tasks.store"):
            continue
        seen.add(name)
        path = _file(project, name)
        if path is None:
            continue
        stat = path.stat()
        checksum, imported = _read(path, name, (stat.st_mtime_ns, stat.st_size))
        found[path.relative_to(project).as_posix()] = checksum
        queue += imported
    return dict(sorted(found.items()))


@cache
def cached_closure(module: str) -> Mapping[str, str]:
    """`closure` of the code as it was when this process first asked."""
    return closure(module)


def combined(files: Mapping[str, str]) -> str:
    """One hash for a closure."""
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in sorted(files.items())).encode()).hexdigest()


def changed(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Files that differ, came or went."""
    return sorted(name for name in {*then, *now} if then.get(name) != now.get(name))


@cache
def _read(path: Path, module: str, _stamp: tuple[int, int]) -> tuple[str, list[str]]:
    """sha256 of a file and the first-party modules it imports; parsed once, stages share most of their files."""
    text = path.read_bytes()
    imported = _imported(text, module, path.name == "__init__.py")
    return hashlib.sha256(text).hexdigest(), [name for name in imported if name.split(".")[0] in OURS]


def _file(project: Path, module: str) -> Path | None:
    base = project.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _imported(text: bytes, module: str, is_package: bool) -> Iterator[str]:
    """Absolute names of all modules that an `import` in `text` may mean, also inside functions."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield from _with_parents(base)
            for alias in node.names:  # `from package import module`
                yield f"{base}.{alias.name}"


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])
