"""Files from anywhere: a local path or glob, gs://, https://, hf:// (or what else fsspec knows).

A remote file is copied whole before it is read. The copy continues where an earlier one stopped, is checked against
the size that the server announced, and gets its name only when complete, so a file that is there is a whole one.
Copies are kept under the address, size and version of the file: a changed file is another file.
"""

import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import tenacity

from tasks.stage import InputError, StopSignal

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

    `on_bytes` is called with the number of bytes that each block brought, from those threads.
    """
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="fetch") as pool:
        waiting: list[Future[Path]] = []
        try:
            for index, path in enumerate(paths):
                while len(waiting) < len(paths) and len(waiting) < index + AHEAD:
                    waiting.append(pool.submit(fetch, paths[len(waiting)], directory, stop, on_bytes))
                yield path, waiting[index].result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def fetch(path: str, directory: Path, stop: StopSignal, on_bytes: Callable[[int], None] = lambda n: None) -> Path:
    """A local file with the content of `path`: the path itself, or a complete, size-checked copy in `directory`.

    InputError when it does not exist, may not be read, or does not arrive in several attempts; Preempted when a
    stop is asked for, which leaves what has arrived for the next time.
    """
    if not is_remote(path):
        return Path(path).expanduser()
    remote = _Remote(path)
    target = directory / f"{remote.identity}-{suffixes(path)}"
    if target.exists() and remote.size in (None, target.stat().st_size):
        return target
    directory.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_Incomplete),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=20),
        sleep=partial(_sleep, stop),
        reraise=True,
    )
    try:
        attempts(remote.download, part, stop, on_bytes)
    except _Incomplete as error:
        raise InputError(
            f"{path} did not arrive in {ATTEMPTS} attempts ({error}): check the connection and run again; "
            f"it continues from {part.stat().st_size if part.exists() else 0:,} bytes."
        ) from error
    os.replace(part, target)
    return target


class _Incomplete(Exception):
    """A transfer that broke off; what arrived is kept."""


class _Remote:
    """One remote file: where it is, how long, and which version."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self.fs, self.path = _filesystem(url)
            info: dict[str, Any] = self.fs.info(self.path)
        except Exception as error:
            raise unreachable(url, error) from error
        self.size: int | None = info.get("size")
        version = [str(info[name]) for name in _VERSION_FIELDS if info.get(name)]
        words = "\n".join([url, str(self.size), *version])
        self.identity = hashlib.blake2b(words.encode(), digest_size=12).hexdigest()

    def download(self, part: Path, stop: StopSignal, on_bytes: Callable[[int], None]) -> None:
        """Completes `part`, continuing after what it holds; raises _Incomplete for anything that may pass."""
        stop.check()
        try:
            with self.fs.open(self.path, "rb", block_size=BLOCK_BYTES) as source, part.open("ab") as sink:
                try:
                    source.seek(sink.tell())
                except (ValueError, OSError):  # a server without ranges: from the start
                    sink.truncate(0)
                while block := source.read(BLOCK_BYTES):
                    sink.write(block)
                    on_bytes(len(block))
                    stop.check()
        except (OSError, ValueError, TimeoutError, _transport_errors()) as error:
            if isinstance(error, FileNotFoundError | PermissionError):
                raise unreachable(self.url, error) from error
            raise _Incomplete(f"{type(error).__name__}: {error}") from error
        arrived = part.stat().st_size
        if self.size is not None and arrived != self.size:
            if arrived > self.size:
                part.unlink()
            raise _Incomplete(f"{arrived:,} of {self.size:,} bytes")


def _sleep(stop: StopSignal, seconds: float) -> None:
    stop.wait(seconds)


def unreachable(url: str, error: BaseException) -> InputError:
    """The one sentence for a remote file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{url} does not exist: correct the address.")
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(f"{url} cannot be read ({reason}): check the address, the connection and your credentials.")


def _transport_errors() -> type[Exception]:
    import aiohttp  # only a remote file needs it, and it takes a third of a second

    return aiohttp.ClientError


def _filesystem(url: str) -> tuple[Any, str]:
    if url.startswith("gs://"):
        from tasks.store.gcs import filesystem

        return filesystem(), url.removeprefix("gs://")
    return fsspec.core.url_to_fs(url)


def _remote_matches(pattern: str, field: str) -> list[str]:
    if pattern.startswith(("http://", "https://")) or not _MAGIC.search(pattern):
        return [pattern]  # `?` starts the query of a web address, and a web server lists nothing
    try:
        fs, path = _filesystem(pattern)
        names = sorted(fs.glob(path))
    except Exception as error:
        raise unreachable(pattern, error) from error
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
