"""Files from anywhere: a local path or glob, gs://, https://, hf:// (or what else fsspec knows).

A remote file is copied whole before it is read. The copy continues where an earlier one stopped, is checked against
the size that the server announced, and gets its name only when complete, so a file that is there is a whole one.
Copies are kept under the address, size and version of the file: a changed file is another file.
"""

import errno
import glob
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import tenacity

from tasks.stage import InputError, Preempted, StopSignal
from tasks.store.secrets import redact, redact_url

BLOCK_BYTES = 8 * 2**20  # of one request
AHEAD = 4  # files downloaded at a time, and ahead of the one that is read
ATTEMPTS = 6  # for one file; what arrived stays between them
_MAGIC = re.compile(r"[*?\[]")
_VERSION_FIELDS = ("etag", "ETag", "md5Hash", "crc32c", "blob_id", "mtime", "LastModified")


def is_remote(path: str) -> bool:
    return "://" in path


def suffixes(path: str) -> str:
    """The file name of a path or URL in lower case, without query: what its format is told by."""
    return Path(urlsplit(path).path if is_remote(path) else path).name.lower()


def expand(patterns: Sequence[str], field: str) -> list[str]:
    """The files that `patterns` mean, pattern by pattern, each one's in alphabetical order, none twice.

    InputError naming `field` for a pattern that matches nothing, a directory, or an address without a file.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        files = _remote_matches(pattern, field) if is_remote(pattern) else _local_matches(pattern, field)
        found.update(dict.fromkeys(files))
    return list(found)


def fetched(
    paths: Sequence[str],
    directory: Path,
    stop: StopSignal,
    on_bytes: Callable[[int], None] = lambda n: None,
) -> Iterator[tuple[str, Path]]:
    """(path, local file) in order; remote files are downloaded by a few threads, some ahead of the reader.

    `on_bytes` is called with the number of bytes that each block brought, from those threads. They end soon after
    the iterator does.
    """
    left = threading.Event()

    def arrived(count: int) -> None:
        if left.is_set():
            raise Preempted("nobody reads any more")
        on_bytes(count)

    with ThreadPoolExecutor(AHEAD, thread_name_prefix="fetch") as pool:
        waiting: list[Future[Path]] = []
        try:
            for index, path in enumerate(paths):
                for ahead in paths[len(waiting) : index + AHEAD]:
                    waiting.append(pool.submit(fetch, ahead, directory, stop, arrived))
                yield path, waiting[index].result()
        finally:
            left.set()
            pool.shutdown(wait=False, cancel_futures=True)


def fetch(path: str, directory: Path, stop: StopSignal, on_bytes: Callable[[int], None] = lambda n: None) -> Path:
    """A local file with the content of `path`: the path itself, or a complete, size-checked copy in `directory`.

    InputError when it does not exist, may not be read, or does not arrive in several attempts; Preempted when a
    stop is asked for, which leaves what has arrived for the next time.
    """
    if not is_remote(path):
        return Path(path).expanduser()
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_Incomplete),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=20),
        sleep=partial(_sleep, stop),
        reraise=True,
    )
    try:
        remote = attempts(_Remote, path)
        target = directory / f"{remote.identity}-{suffixes(path)}"
        if target.exists() and remote.size in (None, target.stat().st_size):
            return target
        directory.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        attempts(remote.download, part, stop, on_bytes)
    except _Incomplete as error:
        raise InputError(
            f"{redact_url(path)} did not arrive in {ATTEMPTS} attempts ({error}): check the connection and your "
            "credentials and run again; it continues with what has arrived."
        ) from error
    os.replace(part, target)
    return target


class _Incomplete(Exception):
    """A transfer that broke off; what arrived is kept."""


class _Remote:
    """One remote file: where it is, how long, and which version."""

    def __init__(self, url: str) -> None:
        self.url = url
        with _translated(url):
            self.fs, self.path = _filesystem(url)
            info: dict[str, Any] = self.fs.info(self.path)
        self.size: int | None = info.get("size")
        version = [str(info[name]) for name in _VERSION_FIELDS if info.get(name)]
        words = "\n".join([url, str(self.size), *version])
        self.identity = hashlib.blake2b(words.encode(), digest_size=12).hexdigest()

    def download(self, part: Path, stop: StopSignal, on_bytes: Callable[[int], None]) -> None:
        """Completes `part`, continuing after what it holds; raises _Incomplete for anything that may pass."""
        stop.check()
        with (
            _translated(self.url),
            self.fs.open(self.path, "rb", block_size=BLOCK_BYTES) as source,
            part.open("ab") as sink,
        ):
            try:
                source.seek(sink.tell())
            except (ValueError, OSError):  # a server without ranges: from the start
                sink.truncate(0)
            while block := source.read(BLOCK_BYTES):
                sink.write(block)
                on_bytes(len(block))
                stop.check()
        arrived = part.stat().st_size
        if self.size is not None and arrived != self.size:
            if arrived > self.size:
                part.unlink()
            raise _Incomplete(f"{arrived:,} of {self.size:,} bytes")


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """What will not pass by itself becomes InputError, the rest _Incomplete; the libraries behind fsspec each have
    exceptions of their own for a broken connection."""
    try:
        yield
    except (Preempted, InputError):
        raise
    except FileNotFoundError as error:
        raise InputError(f"{redact_url(url)} does not exist: correct the address.") from error
    except (PermissionError, ImportError) as error:
        raise _unreadable(url, error) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InputError(f"The disk is full: {redact_url(url)} needs room in store.cache_dir.") from error
        raise _Incomplete(_reason(error)) from error
    except Exception as error:
        raise _Incomplete(_reason(error)) from error


def _unreadable(url: str, error: BaseException) -> InputError:
    return InputError(f"{redact_url(url)} cannot be read ({_reason(error)}): check the address and your credentials.")


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return redact(lines[0].rstrip(".")) if lines else type(error).__name__


def _sleep(stop: StopSignal, seconds: float) -> None:
    stop.wait(seconds)


def _filesystem(url: str) -> tuple[Any, str]:
    if url.startswith("gs://"):
        from tasks.store.gcs import filesystem

        return filesystem(), url.removeprefix("gs://")
    if urlsplit(url).scheme not in fsspec.available_protocols():
        raise InputError(f"{redact_url(url)}: nothing here reads {urlsplit(url).scheme}:// addresses.")
    return fsspec.core.url_to_fs(url)


def _remote_matches(pattern: str, field: str) -> list[str]:
    if pattern.startswith(("http://", "https://")) or not _MAGIC.search(pattern):
        return [pattern]  # `?` starts the query of a web address, and a web server lists nothing
    try:
        with _translated(pattern):
            fs, path = _filesystem(pattern)
            names = sorted(fs.glob(path))
    except _Incomplete as error:
        raise _unreadable(pattern, error) from error
    if not names:
        raise InputError(f"{field}: {pattern} matches no file.")
    return [fs.unstrip_protocol(name) for name in names]


def _local_matches(pattern: str, field: str) -> list[str]:
    expanded = str(Path(pattern).expanduser())
    if Path(expanded).is_file():
        return [expanded]
    if Path(expanded).is_dir():
        raise InputError(f"{field}: {pattern} is a directory: name its files, such as '{pattern.rstrip('/')}/*.jsonl'.")
    files = sorted(name for name in glob.glob(expanded, recursive=True) if Path(name).is_file())
    if not files:
        raise InputError(f"{field}: {pattern} matches no file (looked in {Path.cwd()}).")
    return files
