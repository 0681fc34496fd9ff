import errno
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest

from tasks import fetch
from tasks.stage import InputError, Preempted, StopSignal
from tasks.store.gcs import filesystem

CONTENT = bytes(range(256)) * 1000


class FlakyServer(ThreadingHTTPServer):
    """Serves CONTENT at any path with ranges; breaks off the first `faults` answers after some bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.faults = 0
        self.ranges: list[str | None] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: FlakyServer

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        if self.path.startswith("/absent.txt"):
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        start, stop = 0, len(CONTENT)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1 if last else stop, stop)
        self.send_response(206 if wanted else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(CONTENT)}")
        self.end_headers()
        if not body:
            return
        self.server.ranges.append(wanted)
        if self.server.faults:
            self.server.faults -= 1
            self.wfile.write(CONTENT[start : start + 1000])
            self.connection.close()
            return
        self.wfile.write(CONTENT[start:stop])

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def server():
    flaky = FlakyServer()
    thread = threading.Thread(target=flaky.serve_forever, daemon=True)
    thread.start()
    yield flaky
    flaky.shutdown()
    flaky.server_close()


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(fetch, "_sleep", lambda stop, seconds: None)


def test_a_remote_file_arrives_whole_and_only_once(server, tmp_path):
    arrived = []
    path = fetch.fetch(server.url("a.txt"), tmp_path, StopSignal(), arrived.append)
    assert path.read_bytes() == CONTENT
    assert path.name.endswith("-a.txt")
    assert sum(arrived) == len(CONTENT)
    requests = len(server.ranges)
    assert fetch.fetch(server.url("a.txt"), tmp_path, StopSignal()) == path
    assert len(server.ranges) == requests, "a complete copy was downloaded again"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_transfer_that_breaks_off_continues(server, tmp_path, monkeypatch, no_waiting):
    monkeypatch.setattr(fetch, "BLOCK_BYTES", 50_000)
    stop = StopSignal()

    def stop_after_two_blocks(count: int) -> None:
        if len(server.ranges) >= 2:
            stop.request("preempted")

    with pytest.raises(Preempted):
        fetch.fetch(server.url("a.txt"), tmp_path, stop, stop_after_two_blocks)
    (part,) = tmp_path.iterdir()
    assert part.name.endswith(".part")
    had = part.stat().st_size
    assert 0 < had < len(CONTENT)
    server.ranges.clear()
    server.faults = 2
    path = fetch.fetch(server.url("a.txt"), tmp_path, StopSignal())
    assert path.read_bytes() == CONTENT
    assert all(int(wanted.removeprefix("bytes=").split("-")[0]) >= had for wanted in server.ranges)


def test_a_file_that_never_arrives_is_an_error_that_says_how_to_continue(server, tmp_path, no_waiting):
    server.faults = 10**6
    with pytest.raises(InputError, match=r"a\.txt did not arrive in 6 attempts \(.*\): .* it continues"):
        fetch.fetch(server.url("a.txt"), tmp_path, StopSignal())


def test_a_file_that_does_not_exist_is_told_at_once(server, tmp_path):
    with pytest.raises(InputError, match=r"absent\.txt does not exist"):
        fetch.fetch(server.url("absent.txt"), tmp_path, StopSignal())


def test_a_copy_of_the_wrong_size_is_not_believed(tmp_path):
    fsspec.filesystem("memory").pipe("/sizes/a.txt", b"content")
    path = fetch.fetch("memory://sizes/a.txt", tmp_path, StopSignal())
    path.write_bytes(b"cont")
    assert fetch.fetch("memory://sizes/a.txt", tmp_path, StopSignal()).read_bytes() == b"content"


def test_a_changed_file_is_another_file(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/versions/a.txt", b"first")
    first = fetch.fetch("memory://versions/a.txt", tmp_path, StopSignal())
    memory.pipe("/versions/a.txt", b"second")
    assert fetch.fetch("memory://versions/a.txt", tmp_path, StopSignal()).read_bytes() == b"second"
    assert first.read_bytes() == b"first"


def test_files_come_in_order_whatever_arrives_first(tmp_path):
    memory = fsspec.filesystem("memory")
    local = tmp_path / "here.txt"
    local.write_text("7")
    paths = [f"memory://order/{i}.txt" for i in range(7)]
    for i, path in enumerate(paths):
        memory.pipe(path.removeprefix("memory:/"), str(i).encode())
    got = [(path, file.read_text()) for path, file in fetch.fetched([*paths, str(local)], tmp_path, StopSignal())]
    assert got == [(path, str(i)) for i, path in enumerate([*paths, str(local)])]


def test_patterns_become_files_in_order_and_none_twice(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).touch()
    memory = fsspec.filesystem("memory")
    memory.pipe("/globs/y.txt", b"")
    memory.pipe("/globs/x.txt", b"")
    patterns = [f"{tmp_path}/*.txt", f"{tmp_path}/c.jsonl", f"{tmp_path}/*", "memory://globs/*.txt", "https://h/a?b=*"]
    names = [path.split("/")[-1] for path in fetch.expand(patterns, "data.paths")]
    assert names == ["a.txt", "b.txt", "c.jsonl", "x.txt", "y.txt", "a?b=*"]


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("{0}/*.parquet", r"data\.paths: .*/\*\.parquet matches no file"),
        ("{0}/absent.txt", r"data\.paths: .*absent\.txt matches no file"),
        ("{0}", r"data\.paths: .* is a directory: name its files"),
        ("memory://nowhere/*.txt", r"memory://nowhere/\*\.txt matches no file"),
        ("nosuch://host/a.txt", r"nothing here reads nosuch:// addresses"),
    ],
)
def test_a_pattern_without_files_is_an_error(tmp_path, pattern, sentence):
    with pytest.raises(InputError, match=sentence):
        fetch.fetch(fetch.expand([pattern.format(tmp_path)], "data.paths")[0], tmp_path, StopSignal())


def test_the_format_of_an_address_is_told_without_its_query():
    assert fetch.suffixes("https://host/path/A.JSONL.gz?token=a.txt") == "a.jsonl.gz"
    assert fetch.suffixes("texts/a?b.txt") == "a?b.txt"


def test_files_come_from_a_bucket(gcs_root, tmp_path):
    filesystem().pipe({f"{gcs_root}/texts/{name}": name.encode() for name in ("b.txt", "a.txt")})
    paths = fetch.expand([f"{gcs_root}/texts/*.txt"], "data.paths")
    assert [path.removeprefix(gcs_root) for path in paths] == ["/texts/a.txt", "/texts/b.txt"]
    got = [file.read_text() for _, file in fetch.fetched(paths, tmp_path, StopSignal())]
    assert got == ["a.txt", "b.txt"]


def test_downloads_end_with_their_reader(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "BLOCK_BYTES", 1000)
    files = fetch.fetched([server.url(f"{i}.txt") for i in range(4)], tmp_path, StopSignal())
    next(files)
    files.close()
    complete = [path for path in tmp_path.iterdir() if not path.name.endswith(".part")]
    assert all(path.read_bytes() == CONTENT for path in complete)


def test_a_signature_in_an_address_is_not_told(server, tmp_path):
    with pytest.raises(InputError, match="absent") as caught:
        fetch.fetch(server.url("absent.txt?signature=hunter2hunter2"), tmp_path, StopSignal())
    assert "hunter2" not in str(caught.value)


def test_a_full_disk_is_told_at_once(server, tmp_path):
    def full(count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match="The disk is full"):
        fetch.fetch(server.url("a.txt"), tmp_path, StopSignal(), full)
