"""Files of a trained model come back bit for bit, and those of another one are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.stage import InputError
from tasks.training.weights_io import load_into, save_params

TREE = {
    "layers": {"0": {"c_q": jnp.arange(6.0).reshape(2, 3)}, "10": {"c_q": jnp.ones((2, 3), jnp.bfloat16)}},
    "count": jnp.int32(7),
    "transposed": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
}


def test_a_tree_comes_back_bit_for_bit(tmp_path):
    save_params(tmp_path / "t.safetensors", TREE)
    loaded = load_into(tmp_path / "t.safetensors", TREE)
    assert jax.tree.structure(loaded) == jax.tree.structure(TREE)
    for got, saved in zip(jax.tree.leaves(loaded), jax.tree.leaves(TREE), strict=True):
        assert (got.shape, got.dtype) == (saved.shape, saved.dtype)
        assert np.asarray(got).tobytes() == np.asarray(saved).tobytes()


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (TREE | {"extra": jnp.zeros(1)}, "extra is on one side only"),
        ({name: leaf for name, leaf in TREE.items() if name != "count"}, "count is on one side only"),
        (TREE | {"count": jnp.int32([7])}, r"count is int32\[\] in it and int32\[1\] here"),
        (TREE | {"count": jnp.float32(7)}, r"count is int32\[\] in it and float32\[\] here"),
    ],
)
def test_a_file_of_another_model_is_refused(tmp_path, like, message):
    save_params(tmp_path / "t.safetensors", TREE)
    with pytest.raises(InputError, match=message):
        load_into(tmp_path / "t.safetensors", like)
