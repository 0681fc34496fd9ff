"""Known failures of the compilation cache (B53): a directory that cannot be written or hangs, another topology."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from conf.compose import compose
from tasks.stage import InputError
from tasks.store import Store, StoreUnavailable, compile_cache
from tasks.store.compile_cache import CompileCache
from tasks.store.roots import sha256_file


def compiles(store, log):
    """Whether a program compiles and runs through the cache of this store; gives the cache too."""
    with compile_cache.enabled(store, "cpu-test", log.append) as cache:
        twice = jax.jit(lambda x: jnp.sin(x) * 2)(jnp.zeros(3))
    return bool((twice == 0).all()), cache


def test_b53_a_directory_that_cannot_be_made_costs_compilations_only(tmp_path):
    (tmp_path / "cache").write_text("a file where the directory should be")
    before, log = jax.config.jax_compilation_cache_dir, []
    works, cache = compiles(Store(tmp_path / "root", cache_dir=tmp_path / "cache"), log)
    assert works
    assert (cache.hits, cache.misses) == (0, 0)
    assert len(log) == 1
    assert log[0].startswith("the compilation cache is not used: ")
    assert jax.config.jax_compilation_cache_dir == before


def test_b53_a_directory_that_takes_no_file_is_found_out_before_jax_gets_it(tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CompileCache, "open", full)
    log = []
    assert compiles(Store(tmp_path / "root", cache_dir=tmp_path / "cache"), log)[0]
    assert log == ["the compilation cache is not used: [Errno 28] No space left on device"]


@pytest.mark.parametrize("step", ["open", "pull", "push"])
def test_b53_a_disk_or_bucket_that_hangs_is_left_behind(tmp_path, monkeypatch, step):
    release = threading.Event()
    monkeypatch.setattr(CompileCache, step, lambda self, **_: release.wait(60))
    monkeypatch.setattr(compile_cache, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(compile_cache, "MIRROR_SECONDS", 0.3)
    log = []
    try:
        assert compiles(Store(tmp_path / "root", cache_dir=tmp_path / "cache"), log)[0]
        assert not release.is_set()
    finally:
        release.set()
    instead = "not used" if step == "open" else "not mirrored"
    assert log[0] == f"the compilation cache is {instead}: no answer within 0.3 s"


@pytest.mark.parametrize("error", [OSError("no answer"), StoreUnavailable("no answer"), InputError("no answer")])
def test_b53_a_root_that_refuses_costs_the_mirror_only(tmp_path, error):
    class Refusing:
        def find(self, prefix):
            raise error

        def put(self, path, name):
            raise error

    log = []
    works, cache = compiles(SimpleNamespace(root=Refusing(), cache_dir=tmp_path), log)
    assert works
    assert log[0] == "the compilation cache is not mirrored: no answer"
    assert not cache.directory.exists()


def test_b53_topologies_share_no_entries():
    hardware = compose([]).hardware
    one, four = (replace(hardware, platform="tpu", topology=topology) for topology in ("v6e:1x1", "v6e:2x2"))
    assert compile_cache.tag(one) != compile_cache.tag(four)


@pytest.mark.parametrize("kept", [0, 7, 0.5])
def test_b53_an_entry_that_was_stored_half_written_is_dropped_and_compiled_again(tmp_path, kept):
    """Its checksum fits its bytes, and JAX, which does not write over what it cannot read, would fail each time."""
    store, log = Store(tmp_path / "root", cache_dir=tmp_path / "cache"), []
    assert compiles(store, log)[0]
    stored = [name for name in store.root.find("compile-cache") if "~" in name]
    assert stored
    for name in stored:
        whole, half = store.root.read(f"compile-cache/{name}"), tmp_path / "half"
        half.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
        store.root.delete([f"compile-cache/{name}"])
        store.root.put(half, f"compile-cache/{name.rpartition('~')[0]}~{sha256_file(half)}")
        half.unlink()
    works, cache = compiles(store, log)
    assert works
    assert cache.misses == len(log) == len(stored)
    assert all("is damaged; it is dropped" in line for line in log)
    works, cache = compiles(store, log)
    assert works
    assert (cache.hits, cache.misses) == (len(stored), 0)
