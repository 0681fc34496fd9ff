"""A restart on a new machine compiles nothing; a damaged entry is dropped and never fatal."""

import re

from tasks.store import Store, run_stage

STAGE = "tests.tasks.store.compiling"


def compiled(url, machine, config, seed):
    """Run the stage on a machine with its own cache directory; (programs reused, programs compiled) and the log."""
    log = []
    store = Store(url, cache_dir=machine)
    run_stage(STAGE, config(seed=seed), {}, store, on_event=lambda e: log.append(e.get("message", "")))
    [counts] = re.findall(r"(\d+) programs reused, (\d+) compiled", "\n".join(log))
    return tuple(map(int, counts)), log


def test_a_new_machine_compiles_nothing_and_damage_costs_one_compilation(gcs_root, config, tmp_path):
    (reused, made), _ = compiled(gcs_root, tmp_path / "one", config, 1)
    assert reused == 0
    assert made > 0
    (reused, again), _ = compiled(gcs_root, tmp_path / "two", config, 2)
    assert (reused, again) == (made, 0)

    root = Store(gcs_root, cache_dir=tmp_path / "two").root
    entries = sorted(root.find("compile-cache"))
    assert len(entries) == made
    damaged = f"compile-cache/{entries[0]}"
    data = bytearray(root.read(damaged))
    data[len(data) // 2] ^= 0xFF
    root.write(damaged, bytes(data))
    (reused, again), log = compiled(gcs_root, tmp_path / "three", config, 3)
    assert (reused, again) == (made - 1, 1)
    assert any("is damaged; it is dropped" in line for line in log)
    assert len(root.find("compile-cache")) == made


def test_a_root_without_a_cache_costs_nothing(config, tmp_path):
    from types import SimpleNamespace

    from tasks.store import compile_cache

    class Refusing:
        url = "gs://gone"

        def find(self, prefix):
            raise OSError("no answer")

    log = []
    store = SimpleNamespace(root=Refusing(), cache_dir=tmp_path)
    with compile_cache.enabled(store, "cpu", log.append) as cache:
        directory = cache.directory
        assert directory.is_dir()
    assert log == ["the compilation cache is not mirrored: no answer"]
    assert not directory.exists()


def test_the_tag_holds_platform_topology_and_versions(config):
    from dataclasses import replace

    import jax

    from tasks.store.compile_cache import tag

    hardware = replace(config().hardware, platform="tpu", topology="v6e:2x4")
    assert tag(hardware).startswith(f"tpu-v6e-2x4-jax-{jax.__version__}-jaxlib-")
    assert tag(config().hardware).startswith("cpu-")
