"""Files of weights: what PyTorch writes is read without torch, and nothing that a file asks for is run."""

import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tasks.weights_files import WeightsFileError, read_metadata, read_tensors, write_safetensors

TORCH_CLASS = {"float32": "FloatStorage", "bfloat16": "BFloat16Storage", "int64": "LongStorage"}


def plain(value) -> bytes:
    """Opcodes that push a plain Python value."""
    return pickle.dumps(value, protocol=2)[2:-1]


def push_tensor(key: str, torch_class: str, offset, size, stride) -> bytes:
    """Opcodes as torch.save writes them for one tensor."""
    reference = b"(" + plain("storage") + f"ctorch\n{torch_class}\n".encode() + plain(key) + plain("cpu") + plain(1)
    arguments = b"(" + reference + b"tQ" + plain(offset) + plain(size) + plain(stride) + plain(False)
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"ccollections\nOrderedDict\n)RtR"


def state_dict(entries: dict[str, bytes]) -> bytes:
    """A pickled OrderedDict of already pickled values."""
    items = b"".join(plain(name) + value + b"s" for name, value in entries.items())
    return b"\x80\x02ccollections\nOrderedDict\n)R" + items + b"."


def write_pt(path, pickled: bytes, storages: dict[str, bytes], compression=zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickled)
        archive.writestr(f"{path.stem}/byteorder", "little")
        for key, raw in storages.items():
            archive.writestr(f"{path.stem}/data/{key}", raw)
        archive.writestr(f"{path.stem}/version", "3\n")


def save_like_torch(path, tensors: dict[str, np.ndarray]) -> None:
    entries, storages = {}, {}
    for key, (name, tensor) in enumerate(tensors.items()):
        strides = tuple(step // tensor.itemsize for step in tensor.strides)
        entries[name] = push_tensor(str(key), TORCH_CLASS[str(tensor.dtype)], 0, tensor.shape, strides)
        storages[str(key)] = tensor.ravel(order="K").tobytes()
    write_pt(path, state_dict(entries), storages)


def example() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "lm_head.weight": rng.normal(size=(3, 5)).astype(np.float32),
        "transposed": rng.normal(size=(4, 2)).astype(np.float32).T,
        "transformer.wte.weight": rng.normal(size=(4, 2)).astype(ml_dtypes.bfloat16),
        "step": np.arange(3),
    }


def test_a_torch_checkpoint_is_read_bit_for_bit(tmp_path):
    save_like_torch(tmp_path / "model_000010.pt", example())
    read = read_tensors(tmp_path / "model_000010.pt")
    assert list(read) == list(example())
    for name, tensor in example().items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(read[name], tensor)


def test_two_tensors_may_share_a_storage(tmp_path):
    entries = {
        "a": push_tensor("0", "FloatStorage", 0, (2, 2), (2, 1)),
        "b": push_tensor("0", "FloatStorage", 3, (2,), (1,)),
    }
    write_pt(tmp_path / "shared.pt", state_dict(entries), {"0": np.arange(5, dtype=np.float32).tobytes()})
    read = read_tensors(tmp_path / "shared.pt")
    np.testing.assert_array_equal(read["a"], [[0, 1], [2, 3]])
    np.testing.assert_array_equal(read["b"], [3, 4])


def call(module: str, name: str, *arguments) -> bytes:
    return f"c{module}\n{name}\n(".encode() + b"".join(map(plain, arguments)) + b"tR"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("subprocess", "check_output"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("torch.serialization", "load"),
        ("torch", "load"),
        ("numpy", "load"),
        ("collections", "defaultdict"),
    ],
)
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, module, name):
    witness = tmp_path / "witness"
    write_pt(tmp_path / "evil.pt", state_dict({"w": call(module, name, f"touch {witness}")}), {})
    with pytest.raises(WeightsFileError, match=rf"evil.pt.*{module}.{name}.*Nothing of it was run"):
        read_tensors(tmp_path / "evil.pt")
    assert not witness.exists()


def test_the_pickle_cannot_alter_what_reads_it(tmp_path):
    """BUILD sets attributes on whatever is on the stack: a later, honest file must still be read right."""
    attribute = b"(" + plain("__call__") + plain(1) + b"d"
    for target in (
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ctorch\nFloatStorage\n",
        b"ccollections\nOrderedDict\n",
    ):
        write_pt(tmp_path / "evil.pt", state_dict({"w": target + b"N" + attribute + b"\x86b"}), {})
        with pytest.raises(WeightsFileError):
            read_tensors(tmp_path / "evil.pt")
    test_a_torch_checkpoint_is_read_bit_for_bit(tmp_path)


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (5,), (1,)),
        (1, (4,), (1,)),
        (0, (2, 2), (4, 1)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (10**9,), (0,)),
        (0, (2, 2), (1,)),
        ("0", (1,), (1,)),
        (0, [2], (1,)),
    ],
)
def test_a_tensor_outside_its_storage_is_refused(tmp_path, offset, size, stride):
    pickled = state_dict({"w": push_tensor("0", "FloatStorage", offset, size, stride)})
    write_pt(tmp_path / "model.pt", pickled, {"0": np.arange(4, dtype=np.float32).tobytes()})
    with pytest.raises(WeightsFileError, match=r"model.pt.*\bw\b"):
        read_tensors(tmp_path / "model.pt")


def test_files_that_are_not_plain_state_dicts_are_refused(tmp_path):
    one = push_tensor("0", "FloatStorage", 0, (1,), (1,))
    write_pt(tmp_path / "nested.pt", state_dict({"model": plain({"a": 1})}), {})
    write_pt(tmp_path / "lost.pt", state_dict({"w": one}), {})
    write_pt(tmp_path / "packed.pt", state_dict({"w": one}), {"0": bytes(4)}, zipfile.ZIP_DEFLATED)
    write_pt(tmp_path / "list.pt", b"\x80\x02]" + one + b"a.", {"0": bytes(4)})
    (tmp_path / "legacy.pt").write_bytes(pickle.dumps({"w": 1}))
    (tmp_path / "weights.bin").write_bytes(b"")
    for name, reason in [
        ("nested.pt", "more than tensors \\(model\\)"),
        ("lost.pt", "storage 0, which it does not hold"),
        ("packed.pt", "compressed"),
        ("list.pt", "holds a list"),
        ("legacy.pt", "not a zip"),
        ("weights.bin", "suffix '.bin'"),
        ("absent.pt", "does not exist"),
    ]:
        with pytest.raises(WeightsFileError, match=f"{name}.*{reason}"):
            read_tensors(tmp_path / name)


def test_a_cut_off_file_is_an_error_of_one_sentence(tmp_path):
    np.savez(tmp_path / "w.npz", **example())
    save_like_torch(tmp_path / "w.pt", example())
    write_safetensors(tmp_path / "w.safetensors", example())
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        for size in (0, 5, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(WeightsFileError, match=str(path)):
                read_tensors(path)


def test_safetensors_and_npz_round_trip(tmp_path):
    write_safetensors(tmp_path / "w.safetensors", example(), {"stage": "base"})
    np.savez(tmp_path / "w.npz", **{name: tensor for name, tensor in example().items() if "wte" not in name})
    assert read_metadata(tmp_path / "w.safetensors") == {"stage": "base"}
    assert os.listdir(tmp_path).count("w.safetensors.part") == 0
    for path in tmp_path.iterdir():
        for name, tensor in read_tensors(path).items():
            assert tensor.dtype == example()[name].dtype
            np.testing.assert_array_equal(tensor, example()[name])


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.ones(2, np.float32))
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.write(tmp_path / "one.npy", "lm_head.weight.npy")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.write(tmp_path / "one.npy", "lm_head.weight.npy")
    (tmp_path / "one.npy").unlink()
    one = b'"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = b"{" + one + b"," + one + b"}"
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    for path in tmp_path.iterdir():
        with pytest.raises(WeightsFileError, match="more than once"):
            read_tensors(path)


@pytest.mark.parametrize("stored", ["w.npz~2", "w.npz~2.1", "w~old.npz", "w~3.npz"])
def test_the_format_is_told_by_the_name_without_what_a_store_puts_behind_it(tmp_path, stored):
    np.savez(tmp_path / "w.npz", **example())
    (tmp_path / "w.npz").rename(tmp_path / stored)
    assert read_tensors(tmp_path / stored).keys() == example().keys()
