"""Run by test_branches on four emulated devices: the largest relative difference of a loss from one device."""

import jax
import numpy as np

from model.branches import device_arrays, reach, score
from model.buckets import plan
from model.mesh import make_mesh, row_shards, shard_state
from model.recipe import Compute
from model.score import Question
from tests.model.engines import quick_compilation, random_params, tiny


def main() -> None:
    config = tiny(n_layer=2, n_kv_head=1, seq_len=16)
    params = random_params(config)
    rng = np.random.default_rng(0)
    asked = []
    for number in range(7):
        ids = (0, *rng.integers(1, 97, 20 + 5 * number).tolist())
        options = tuple((*ids, *rng.integers(1, 97, 1 + k).tolist()) for k in range(3))
        asked.append(Question(number, options, (len(ids),) * 3, tuple(map(len, options)), gold=0))
    losses = []
    for mesh in (None, make_mesh(data=2, fsdp=1, tensor=2)):
        placed = params if mesh is None else shard_state(params, config, mesh)
        shards = 1 if mesh is None else row_shards(mesh)
        found = {}
        for batch in plan(asked, 1000, reach(config), shards):
            nats, _ = score(placed, device_arrays(batch, mesh), config, Compute(), mesh)
            found |= {(n, k): np.asarray(nats)[r, at].mean() for r, n, k, at in batch.spans()}
        losses.append(found)
    assert len(losses[0]) == 21
    print(max(abs(losses[1][key] / loss - 1) for key, loss in losses[0].items()))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    with quick_compilation():
        main()
