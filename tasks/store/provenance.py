"""Where an artifact comes from, besides its config and inputs: commit, package versions, device."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

from tasks.store.sources import PROJECT

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tokenizers", "numpy", "pyarrow", "libtpu")


def commit() -> str:
    """The git commit of the project, with `+` after it if files are changed; empty outside a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def packages() -> dict[str, str]:
    """Versions of the packages that compute, and of Python."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device(hardware: Any) -> dict[str, Any]:
    """The machine, what it costs (the config's `hardware`), and JAX's devices if this process used JAX."""
    found: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count()}
    found |= {"hardware": hardware.name, "chips": hardware.chips, "spot_price": hardware.spot_price}
    if "jax" in sys.modules:
        import jax

        devices = jax.devices()
        found |= {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}
    return found


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
