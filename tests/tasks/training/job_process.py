"""Run twice by test_distributed: one of the two processes that train a model together. The first prints JSON."""

import json
import sys

import numpy as np

from model.mesh import make_mesh
from tasks.training.distributed import start, to_host
from tasks.training.placement import Placement
from tasks.training.rendezvous import Absent, Job
from tests.model.mesh_layouts import CONFIG, batches, distance, train


def main(rank: int, port: int) -> None:
    team = start(Job(("host-a", "host-b"), rank, "127.0.0.1", port, key="base"), seconds=120)
    mesh = make_mesh()
    state, metrics = train(mesh)
    together = to_host(state.params)
    rows = Placement(CONFIG, mesh).put_rows(batches()[0])
    own = np.concatenate([np.asarray(shard.data) for shard in rows.addressable_shards], axis=1)
    half = 4 * rank  # of the eight rows of each micro-batch
    assert np.array_equal(own, batches()[0][:, half : half + 4])

    late = ""
    if team.leads:
        alone, expected = train(None)
        try:
            team.wait("step 250", seconds=0.5)  # where only the first one goes
        except Absent as absent:
            late = str(absent)
        same_rows = [
            np.array_equal(a["row_checksums"], b["row_checksums"]) for a, b in zip(metrics, expected, strict=True)
        ]
        found = {"processes": mesh.devices.size, "params": distance(together, alone.params), "same_rows": same_rows}
        print(json.dumps({**found, "late": late}))
    team.wait("the end", seconds=200)
    team.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
