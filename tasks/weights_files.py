"""Tensors by name from a file (a PyTorch zip checkpoint, safetensors or npz), and to a safetensors file."""

import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from tasks.stage import InputError
from tasks.torch_checkpoint import read_torch_checkpoint

STORED_AGAIN = re.compile(r"~\d+(\.\d+)?$")  # what a store puts behind the name of a file that an attempt made again


class WeightsFileError(InputError):
    """A file of weights that cannot be read, or must not be. `str(error)` is the sentence a user reads."""


def read_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """All tensors of `path` by name; the suffix chooses the format (.pt .pth .safetensors .npz).

    bfloat16 arrives as `ml_dtypes.bfloat16`. Arrays may be read-only. Raises `WeightsFileError` for a missing
    or damaged file, one that holds a name twice, and a checkpoint that is more than a plain state dict.
    """
    path = Path(path)
    suffix = Path(STORED_AGAIN.sub("", path.name)).suffix
    reader = READERS.get(suffix)
    if reader is None:
        known = ", ".join(READERS)
        raise WeightsFileError(f"{path} has the suffix '{suffix}', but weights are read from {known} files.")
    if not path.is_file():
        raise WeightsFileError(f"{path} does not exist.")
    try:
        return reader(path)
    except (zipfile.BadZipFile, safetensors.SafetensorError, OSError, ValueError, EOFError) as error:
        raise WeightsFileError(f"{path} cannot be read as {suffix}: {error}") from error


def read_metadata(path: str | Path) -> dict[str, str]:
    """The free-form metadata of a safetensors file."""
    with safetensors.safe_open(path, framework="np") as file:
        return file.metadata() or {}


def write_safetensors(
    path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` and `metadata` to `path`; the file appears whole or not at all."""
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    # safetensors writes an array's buffer as it lies, so a transposed view would come out scrambled
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    safetensors.numpy.save_file(contiguous, unfinished, metadata=dict(metadata or {}))
    os.replace(unfinished, path)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        header = file.read(min(int.from_bytes(file.read(8), "little"), os.path.getsize(path)))

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _refuse_repeats(name for name, _ in pairs)
        return dict(pairs)

    json.loads(header, object_pairs_hook=unique)  # the library keeps the last of two tensors with one name
    return safetensors.numpy.load_file(path)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        _refuse_repeats(archive.files)
        return {name: archive[name] for name in archive.files}


def _refuse_repeats(names: Iterable[str]) -> None:
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise ValueError(f"{', '.join(repeated)} occurs more than once; write the file again without the copies")


READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".pt": read_torch_checkpoint,
    ".pth": read_torch_checkpoint,
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
}
