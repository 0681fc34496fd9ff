"""Tensors of a PyTorch zip checkpoint, read without torch and without trust.

The format is a zip of raw storages and a pickle that says how tensors are cut out of them. Four kinds of name
may occur in that pickle, none of them runs code of the file, and every shape, stride and offset is checked
against the storage it points into. Anything else is refused before it happens.
"""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

MAX_PICKLE_BYTES = 64 << 20  # a state dict of 100,000 tensors has a pickle of about 20 MB

# torch's storage classes by name, with the element type of each.
STORAGE_DTYPES: dict[str, Any] = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


class CheckpointRefused(ValueError):
    """The file is not a plain state dict. It was not trusted, and nothing of it was run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"it {reason}. Nothing of it was run; save the weights again as safetensors.")


def read_torch_checkpoint(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file that `torch.save(module.state_dict())` wrote, by name, as read-only arrays.

    Raises `CheckpointRefused` for whatever else it holds or asks for, `zipfile.BadZipFile` if it is damaged.
    """
    if not zipfile.is_zipfile(path):
        raise CheckpointRefused("is not a zip (damaged, or written by PyTorch before 1.6)")
    with zipfile.ZipFile(path) as archive:
        root = _checked_root(archive)
        views = _read_views(archive.read(f"{root}data.pkl"))
        storages: dict[_Storage, np.ndarray] = {}
        for view in views.values():
            if view.storage not in storages:
                storages[view.storage] = _read_storage(archive, root, view.storage)
    return {name: _cut_out(name, view, storages[view.storage]) for name, view in views.items()}


class _Storage(NamedTuple):
    """Raw bytes in the zip, `data/<key>`, and the torch class that types them."""

    key: str
    torch_class: str


class _View(NamedTuple):
    """A tensor as the pickle describes it; cut out only after the whole pickle has been read."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _RebuildTensor:
    """Stands in for `torch._utils._rebuild_tensor_v2`. No attributes, so that a pickle cannot alter it."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, size: Any, stride: Any, *_grad_and_hooks: Any) -> _View:
        return _View(storage, offset, size, stride)


class _RebuildParameter:
    """Stands in for `torch._utils._rebuild_parameter`."""

    __slots__ = ()

    def __call__(self, data: Any, *_grad_and_hooks: Any) -> Any:
        return data


class _StateDictUnpickler(pickle.Unpickler):
    """Knows the names that occur in a state dict, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for `module.name`; raises `CheckpointRefused` for everything outside the list."""
        match module, name:
            case "collections", "OrderedDict":
                return OrderedDict
            case "torch._utils", "_rebuild_tensor_v2":
                return _RebuildTensor()
            case "torch._utils", "_rebuild_parameter":
                return _RebuildParameter()
            case "torch", storage if storage in STORAGE_DTYPES:
                return storage
        raise CheckpointRefused(f"asks for {module}.{name}, which no plain state dict needs")

    def persistent_load(self, pid: Any) -> _Storage:
        """The storage named by `pid` = ("storage", class, key, location, count)."""
        match pid:
            case ("storage", str(torch_class), str(key), str(_), int(_)) if torch_class in STORAGE_DTYPES:
                return _Storage(key, torch_class)
        raise CheckpointRefused(f"has an unknown reference {pid!r}")


def _checked_root(archive: zipfile.ZipFile) -> str:
    """The folder inside the zip that holds data.pkl."""
    members = archive.infolist()
    names = [member.filename for member in members]
    pickles = [member for member in members if member.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or len(set(names)) != len(names):
        raise CheckpointRefused("does not hold exactly one data.pkl, or holds a member twice")
    if pickles[0].file_size > MAX_PICKLE_BYTES:
        raise CheckpointRefused("has a data.pkl far larger than a state dict needs")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise CheckpointRefused("is compressed, which torch.save never does")
    root = pickles[0].filename.removesuffix("data.pkl")
    if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
        raise CheckpointRefused("was written on a big-endian machine")
    return root


def _read_views(pickled: bytes) -> dict[str, _View]:
    try:
        state = _StateDictUnpickler(io.BytesIO(pickled)).load()
    except CheckpointRefused:
        raise
    except Exception as error:  # a hostile pickle can make the unpickler raise anything
        raise CheckpointRefused(f"has a pickle that is no state dict ({type(error).__name__}: {error})") from error
    if not isinstance(state, dict):
        raise CheckpointRefused(f"holds a {type(state).__name__}, not a dict of tensors")
    others = [
        str(name)
        for name, view in state.items()
        if not (isinstance(name, str) and isinstance(view, _View) and isinstance(view.storage, _Storage))
    ]
    if others:
        raise CheckpointRefused(
            f"holds more than tensors ({', '.join(others[:5])}): pass model_*.pt, not optimizer state"
        )
    return dict(state)


def _read_storage(archive: zipfile.ZipFile, root: str, storage: _Storage) -> np.ndarray:
    try:
        raw = archive.read(f"{root}data/{storage.key}")
    except KeyError as error:
        raise CheckpointRefused(f"names storage {storage.key}, which it does not hold") from error
    return np.frombuffer(raw, dtype=STORAGE_DTYPES[storage.torch_class])


def _cut_out(name: str, view: _View, storage: np.ndarray) -> np.ndarray:
    """The tensor that `view` describes; refused where it would reach outside `storage`."""
    _, offset, size, stride = view
    if not (isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)) or any(
        type(number) is not int or number < 0 for number in (offset, *size, *stride)
    ):
        raise CheckpointRefused(f"gives {name} the impossible shape {size!r} with strides {stride!r}")
    if 0 in size:
        return np.empty(size, dtype=storage.dtype)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if last >= len(storage) or math.prod(size) > len(storage):
        raise CheckpointRefused(f"lets {name} reach past the end of its storage")
    byte_strides = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, byte_strides, writeable=False)
