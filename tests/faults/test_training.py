"""Known failures of training and its checkpoints, each named after its line in the list of known failures."""

import json
import re
import shutil
import socket
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.stage import InputError
from tasks.store import StoreUnavailable
from tasks.training.loader import Loader
from tests.tasks.training.checkpointing import Run, position, state_at
from tests.tasks.training.test_loader import numbered


def test_b26_no_batch_changes_after_it_was_handed_out():
    """`device_put` may alias NumPy memory: a buffer that is filled again changes the batch on the device."""
    batches = Loader(numbered(64), 0, 2, 4).batches(0, 8, depth=1)
    on_device, expected = [], []
    for batch in batches:
        on_device.append(jax.device_put(batch.rows))
        expected.append(batch.rows.copy())
        with pytest.raises(ValueError, match="read-only"):
            batch.rows[:] = 0
        with pytest.raises(ValueError, match="read-only"):
            batch.sums[:] = 0
    assert all(np.array_equal(got, want) for got, want in zip(on_device, expected, strict=True))


def test_b27_one_and_a_half_epochs_read_each_row_once_or_twice():
    loader = Loader(numbered(8, 12), seed=1, grad_accum_steps=1, micro_rows=3)  # 20 rows: 6⅔ batches an epoch
    seen = np.concatenate([batch.indices.ravel() for batch in loader.batches(0, 10)])
    assert len(seen) == 30
    assert sorted(seen[:20]) == list(range(20))
    assert len(set(seen[20:])) == 10
    assert not np.array_equal(seen[:10], seen[20:])  # the second epoch has an order of its own


def test_b31_a_loader_that_hangs_is_named_instead_of_waited_for(monkeypatch):
    wait = threading.Event()
    monkeypatch.setattr(Loader, "batch", lambda self, step: wait.wait(60))
    with pytest.raises(StoreUnavailable, match=f"did not come within 0 s on {re.escape(socket.gethostname())}"):
        next(Loader(numbered(8), 0, 1, 4).batches(0, 2, patience=0.05))
    wait.set()


# ---- checkpoints that must not be believed: each ends with the one before it, and a message


def empty_directory(stored, _run):
    for path in (stored / "data").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def zero_byte_file(stored, _run):
    replace(largest(stored), b"")


def missing_shard(stored, _run):
    largest(stored).unlink()


def flipped_byte(stored, _run):
    content = bytearray(largest(stored).read_bytes())
    content[len(content) // 2] ^= 1
    replace(largest(stored), bytes(content))


def truncated_marker(stored, _run):
    replace(stored / "commit.json", (stored / "commit.json").read_bytes()[:-20])


def lying_manifest(stored, _run):
    marker = json.loads((stored / "commit.json").read_text())
    marker["meta"]["tensors"]["params.wte"]["checksum"] ^= 1
    replace(stored / "commit.json", json.dumps(marker).encode())


def largest(stored):
    return max((path for path in (stored / "data").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def replace(path, content):
    """New bytes under the old name, without touching other hard links to it."""
    path.unlink()
    path.write_bytes(content)


DAMAGES = [empty_directory, zero_byte_file, missing_shard, flipped_byte, truncated_marker, lying_manifest]


@pytest.fixture
def two_saved(tmp_path):
    run = Run(tmp_path)
    assert run.save(10)
    assert run.save(20)
    shutil.rmtree(run.attempt.out.path)  # the next attempt is on a fresh machine
    run.attempt.end()
    return run


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_b35_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(two_saved, tmp_path, damage):
    damage(two_saved.stored(20), two_saved)
    run = Run(tmp_path)
    state, where = run.restore()
    assert (where.step, int(state["step"])) == (10, 10)
    assert any("00000020" in line for line in run.lines)
    assert run.steps() == [10]
    assert run.save(20)  # the step comes by again
    assert run.steps() == [10, 20]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_b33_when_none_loads_the_run_stops_and_never_starts_over(two_saved, tmp_path, damage):
    damage(two_saved.stored(10), two_saved)
    damage(two_saved.stored(20), two_saved)
    for _attempt in range(3):  # the same command again must not forget it
        run = Run(tmp_path)
        with pytest.raises(InputError, match=r"none can be used .*does not start again from step 0"):
            run.restore()
        run.attempt.end()


def test_b34_what_is_kept_is_listed_anew_from_storage(tmp_path):
    run = Run(tmp_path)
    assert run.save(10)
    assert run.save(20)
    shutil.rmtree(run.stored(20))  # gone behind our back: no list in memory may keep it
    assert run.save(30)
    assert run.steps() == [10, 30]


def test_b36_a_copied_tree_restores(two_saved, tmp_path):
    shutil.copytree(tmp_path / "root", tmp_path / "elsewhere" / "root")
    _, where = Run(tmp_path / "elsewhere").restore()
    assert where.step == 20


def test_b37_a_checkpoint_of_another_shape_is_not_restored(two_saved, tmp_path):
    run = Run(tmp_path)
    with pytest.raises(
        InputError, match=r"another model: params.wte is float32\[4, 3\] in it and float32\[4, 5\] here"
    ):
        run.restore(width=5)


def test_b37_nor_one_with_other_layers_or_dtypes(tmp_path):
    run = Run(tmp_path)
    deeper = state_at(10) | {"layers": {"0": jnp.zeros(2)}}
    other_dtype = state_at(20)
    other_dtype["params"]["wte"] = other_dtype["params"]["wte"].astype(jnp.bfloat16)
    assert run.save(10, state=deeper)
    assert run.save(20, state=other_dtype)
    with pytest.raises(InputError) as caught:
        run.restore()
    assert "has 1 that this one has not, such as layers.0" in str(caught.value)
    assert "params.wte is bfloat16[4, 3] in it and float32[4, 3] here" in str(caught.value)


@pytest.mark.parametrize("enabled", [False, True])
def test_b38_saving_does_not_need_jaxs_preemption_service(tmp_path, enabled):
    before = jax.config.jax_enable_preemption_service
    jax.config.update("jax_enable_preemption_service", enabled)
    try:
        run = Run(tmp_path)
        assert run.save(10)
        assert run.steps() == [10]
    finally:
        jax.config.update("jax_enable_preemption_service", before)


class Killed(BaseException):
    """The process ends here: nothing after it runs."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_b39_a_kill_before_any_write_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    """Every object that the store makes is one moment to die at, up to the marker; then there is nothing left."""
    for write in range(100):
        run = Run(tmp_path / str(write))
        assert run.save(10)
        killed = die_before(write, run.attempt.root, monkeypatch)
        run.checkpoints.save(state_at(20), position(20), [])
        run.checkpoints.finish(60)
        run.attempt.end()
        _, where = Run(tmp_path / str(write)).restore()
        if not killed:
            assert where.step == 20
            break
        assert where.step == 10
    assert write > 10  # the files of Orbax, and the marker


def die_before(write, root, monkeypatch):
    """The list gets an entry once the process "died" in place of the n-th write."""
    killed, left = [], iter(range(write))

    def dying(do):
        def call(*args):
            if killed or next(left, None) is None:
                killed.append(True)
                raise Killed
            return do(*args)

        return call

    monkeypatch.setattr(root, "put", dying(root.put))
    monkeypatch.setattr(root, "create", dying(root.create))
    return killed
