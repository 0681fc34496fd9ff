"""Known failures of result caches and of object storage: B1 to B6, B20, B22 to B25, B56, and what a network does."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace

import pytest

from conf.compose import compose
from tasks.stage import InputError, Stage
from tasks.store import StageFailed, Store, StoreUnavailable, keys, run_inline, run_stage, sources
from tasks.store.__main__ import main as housekeeping
from tasks.store.lease import Lease
from tasks.store.sources import PROJECT
from tests.fault_proxy import FaultProxy
from tests.gcs_server import GcsServer

TOY = "tests.tasks.store.toy"


@pytest.fixture(scope="module")
def config():
    return compose([])


@pytest.fixture
def proxied(tmp_path, monkeypatch):
    """(store in a fresh bucket, proxy in front of its server, root that goes around the proxy)."""
    from tasks.store import gcs

    server = GcsServer(tmp_path)
    proxy = FaultProxy(server.port)
    server.via = proxy.url
    server.start()
    bucket = server.new_bucket()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gcs.random, "random", lambda: 0.0)
    yield Store(f"gs://{bucket}/runs", cache_dir=tmp_path / "cache", lease_seconds=30), proxy, server
    proxy.close()
    server.stop()


# B1 to B6: what a result cache of a workflow system gets wrong


def test_b1_two_stages_with_the_same_config_have_different_keys(config):
    one, other = (Stage(name, 1, reads=("seed",)) for name in ("tokenizer", "shards"))
    assert keys.digest(keys.payload(one, config, {})) != keys.digest(keys.payload(other, config, {}))


def test_b2_the_same_work_in_a_new_process_is_reused(config, store):
    made = run_inline(TOY, config, {}, store)
    code = (
        "import sys; from conf.compose import compose; from tasks.store import Store; "
        f"print(Store(sys.argv[1]).locate({TOY!r}, compose([]), {{}}).artifact.key)"
    )
    found = subprocess.run([sys.executable, "-c", code, store.root.url], cwd=PROJECT, capture_output=True, text=True)
    assert found.stdout.strip() == made.key


def test_b3_a_change_in_a_helper_is_noticed(config, store, monkeypatch):
    run_inline(TOY, config, {}, store)
    changed = {**sources.closure(TOY), "tasks/stage.py": "0" * 64}
    monkeypatch.setattr(sources, "cached_closure", lambda module: changed)
    assert store.locate(TOY, config, {}).changed_files == ["tasks/stage.py"]
    strict = Store(store.root.url, cache_dir=store.cache_dir, strict_code=True)
    assert not strict.locate(TOY, config, {}).hit


def test_b4_an_artifact_that_was_deleted_is_made_again(config, store):
    made = run_inline(TOY, config, {}, store)
    store.root.delete([f"{made.where}/{name}" for name in store.root.find(made.where)])
    assert store.locate(TOY, config, {}).state == "miss"
    run_inline(TOY, config, {}, store).verify()


def test_b4_an_artifact_that_lost_a_file_is_made_again(config, store):
    made = run_inline(TOY, config, {}, store)
    store.root.delete([f"{made.where}/whole.txt"])
    assert store.locate(TOY, config, {}).state == "damaged"
    run_inline(TOY, config, {}, store).verify()


def test_b5_a_set_has_no_key_and_equal_configs_have_one():
    with pytest.raises(InputError, match=r"value\.tasks is a set"):
        keys.dumps({"tasks": {"a", "b"}})

    @dataclass
    class Section:
        steps: int
        names: list[str]

    assert keys.dumps(Section(3, ["a"])) == keys.dumps({"steps": 3, "names": ["a"]})


@pytest.mark.parametrize("value", [object(), b"bytes", float("nan"), float("inf"), {1: "x"}, {"deep": [lambda: 0]}])
def test_b6_what_cannot_be_hashed_is_a_loud_error(value):
    with pytest.raises(InputError):
        keys.digest({"value": value})


@pytest.mark.parametrize(
    ("one", "other"), [("sft.epochs=2", "sft.epochs=2.0"), ("sft.val_share=0.02", "sft.val_share=0.020")]
)
def test_b20_equal_numbers_have_equal_keys(one, other):
    stage = Stage("toy", 1, reads=("sft",))
    assert keys.digest([0.02, 12]) == keys.digest([0.020, 12.0])
    first, second = (keys.digest(keys.payload(stage, compose([word]), {})) for word in (one, other))
    assert first == second


# B22 to B25: object storage


def test_b22_an_upload_that_breaks_off_publishes_nothing(proxied, tmp_path):
    store, proxy, _ = proxied
    path = tmp_path / "big"
    path.write_bytes(os.urandom(8_000_000))
    proxy.cut_after, proxy.cuts = 3_000_000, 1000
    with pytest.raises(StoreUnavailable, match="Cannot upload toy/big"):
        put_hastily(store, path, "toy/big")
    proxy.cut_after = None
    assert store.root.find("toy") == {}
    store.root.put(path, "toy/big")
    assert store.root.find("toy")["big"].size == 8_000_000


def put_hastily(store, path, name):
    """`put`, with gcsfs's pauses between tries left out."""
    from gcsfs import retry

    async def no_pause(seconds):
        pass

    genuine, retry.asyncio = retry.asyncio, type("hasty", (), {"sleep": staticmethod(no_pause)})
    try:
        store.root.put(path, name)
    finally:
        retry.asyncio = genuine


def test_b22_no_object_is_ever_written_as_a_stream():
    for path in (PROJECT / "tasks/store").glob("*.py"):
        assert "fs.open(" not in path.read_text(), f"{path} streams into an object"


def test_b23_what_another_process_stores_is_seen_at_once(gcs_root):
    mine, other = Store(gcs_root).root, Store(gcs_root).root
    assert mine.find("toy") == {}
    code = "import sys; from tasks.store import Store; Store(sys.argv[1]).root.create('toy/new', b'x')"
    subprocess.run([sys.executable, "-c", code, gcs_root], cwd=PROJECT, check=True)
    assert set(mine.find("toy")) == {"new"} == set(other.find("toy"))


@pytest.mark.parametrize(("way", "at_once"), [("pipe_file", 10_000), ("put_file", 1)])
def test_b24_an_object_that_arrives_damaged_is_sent_again(gcs_root, tmp_path, monkeypatch, way, at_once):
    monkeypatch.setattr("tasks.store.gcs.AT_ONCE", at_once)
    root = Store(gcs_root).root
    path = tmp_path / "file"
    path.write_bytes(b"whole" * 1000)
    write, genuine, calls = root.fs.pipe_file, getattr(root.fs, way), []

    def spoiled(*what, **options):
        calls.append(what)
        if len(calls) == 1:  # the server got other bytes, as with a chunk sent twice
            return write(f"{root.url.removeprefix('gs://')}/toy/file", b"other bytes")
        return genuine(*what, **options)

    monkeypatch.setattr(root.fs, way, spoiled)
    root.put(path, "toy/file")
    assert root.read("toy/file") == path.read_bytes()
    assert len(calls) == 2


def test_b24_a_create_whose_reply_is_lost_is_ours_and_another_ones_is_not(gcs_root):
    root = Store(gcs_root).root
    root.create("toy/manifest", b"ours")
    root.create("toy/manifest", b"ours")  # what gcsfs's second try looks like from here
    with pytest.raises(FileExistsError):
        root.create("toy/manifest", b"theirs")


def test_b25_the_heartbeat_is_joined_before_the_lease_goes(root_of):
    root, lost = root_of, []
    lease = Lease(root, "toy/key", seconds=0.4)
    lease.acquire()
    lease.start(lost.append)
    beating = threading.Event()
    genuine = root.write

    def slow(name, data):
        beating.set()
        time.sleep(0.3)
        genuine(name, data)

    root.write = slow
    assert beating.wait(20)
    lease.release(remove=True)
    assert not lease._thread.is_alive()
    time.sleep(0.3)
    assert lost == []
    assert root.find("toy/key") == {}


@pytest.fixture(params=["local", "gcs"])
def root_of(request, tmp_path):
    return Store(str(tmp_path / "root") if request.param == "local" else request.getfixturevalue("gcs_root")).root


def test_b25_a_lease_that_vanishes_while_it_is_read_counts_as_released(root_of):
    root = root_of
    holder = Lease(root, "toy/key", seconds=60)
    holder.acquire()
    genuine = root.read

    def vanishing(name):
        root.read = genuine
        root.delete([name])
        return genuine(name)

    root.read = vanishing
    assert Lease(root, "toy/key", seconds=60).acquire() == 1


def test_b56_exit_status_0_alone_does_not_make_a_stage_done(config, store):
    made = replace(config, data=replace(config.data, paths=["exit0"]))
    with pytest.raises(StageFailed, match="status 0"):
        run_stage(TOY, made, {}, store, on_event=lambda event: None)


# What a network and a cloud do


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_server_that_is_overloaded_for_a_moment_is_waited_for(proxied, status):
    store, proxy, _ = proxied
    proxy.status = status
    threading.Timer(0.5, lambda: setattr(proxy, "status", None)).start()
    store.root.create("toy/x", b"x")
    assert proxy.requests >= 1
    assert store.root.read("toy/x") == b"x"


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (401, {"error": {"code": 401, "message": "expired"}}, r"credentials are not accepted \(401\); log in again"),
        (403, {"error": {"code": 403, "message": "no"}}, r"access is refused \(403\); grant .*storage.objectUser"),
    ],
)
def test_a_bucket_that_refuses_is_one_sentence_before_any_work(proxied, status, body, sentence):
    store, proxy, _ = proxied
    proxy.status, proxy.body = status, json.dumps(body).encode()
    with pytest.raises(InputError, match=sentence) as caught:
        store.check()
    assert "\n" not in str(caught.value)
    assert proxy.requests == 1


def test_a_bucket_that_does_not_exist_is_one_sentence(gcs_root, tmp_path, capsys):
    with pytest.raises(InputError, match="there is no bucket 'nobody-has-this'"):
        Store("gs://nobody-has-this/runs", cache_dir=tmp_path).check()
    assert housekeeping(["ls", "--root", "gs://nobody-has-this/runs"]) == 2
    assert "there is no bucket 'nobody-has-this'" in capsys.readouterr().err


def test_an_empty_bucket_is_an_empty_store(gcs_root, capsys):
    assert housekeeping(["ls", "--root", gcs_root]) == 0
    assert housekeeping(["ls", "--root", gcs_root.removesuffix("/runs")]) == 0
    assert "0 in gs://" in capsys.readouterr().out


def test_a_stage_survives_a_restart_of_the_server(proxied, config, monkeypatch):
    store, _, server = proxied
    from tests.tasks.store import toy

    genuine = toy.run

    def restarting(view, inputs, out):
        server.stop()
        threading.Timer(0.3, server.start).start()
        return genuine(view, inputs, out)

    monkeypatch.setattr(toy, "run", restarting)
    run_inline(TOY, config, {}, store).verify()
