"""A root in a Google Cloud Storage bucket, through gcsfs.

Finished local files are uploaded and their CRC32C compared; nothing is streamed into an object, since an exception
half-way would publish what was there (KNOWN_FAILURES B22). What is fetched, the caller verifies by sha256. Listings
are never cached (B23). gcsfs retries 408, 429, 5xx and broken connections with jitter for about half a minute; on top
of that only a deadline and the repair of an object that arrived damaged are ours.
"""

import base64
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # zonal buckets: probes that cost seconds a call

import logging

import aiohttp
import gcsfs
import google.auth.exceptions
import requests.exceptions
from fsspec.exceptions import FSTimeoutError
from gcsfs.retry import ChecksumError, HttpError
from google_crc32c import Checksum

from tasks.stage import InputError
from tasks.store.gather import parallel
from tasks.store.roots import Found, StoreUnavailable

REQUEST_SECONDS = 60.0
"""Longest single request; a 50 MiB chunk passes at 1 MiB/s."""
SLOWEST = 2**20
"""bytes/s below which a transfer counts as stuck."""
GRACE_SECONDS = 120.0
"""Deadline of a transfer beyond its size over SLOWEST: room for gcsfs's own retries."""
AT_ONCE = 50 * 2**20
"""bytes below which a file is sent in one request: the server refuses it at once if the name is taken."""
UPLOADS = 3
"""Times that a file which arrives damaged is sent."""


class GcsRoot:
    """Objects below `gs://bucket/prefix`. STORAGE_EMULATOR_HOST points it at another server."""

    def __init__(self, url: str) -> None:
        self._base = url.removeprefix("gs://").strip("/")
        self.url = f"gs://{self._base}"
        self.bucket = self._base.partition("/")[0]
        if not self.bucket:
            raise InputError(f"store.root={url} names no bucket: write gs://bucket/prefix.")
        self.fs = filesystem()

    def check(self) -> None:
        try:
            self.write(".probe", b"")
        except FileNotFoundError as error:
            raise self._no_bucket() from error
        self.delete([".probe"])

    def read(self, name: str) -> bytes:
        with self._translated(f"read {name} from"):
            return self.fs.cat_file(self._full(name), timeout=GRACE_SECONDS)

    def create(self, name: str, data: bytes) -> None:
        with self._translated(f"create {name} in"):
            try:
                self.fs.pipe_file(self._full(name), data, mode="create", timeout=GRACE_SECONDS)
            except FileExistsError:
                # Ours, if the reply of our first request was lost and gcsfs sent it again.
                if self.fs.cat_file(self._full(name), timeout=GRACE_SECONDS) != data:
                    raise

    def write(self, name: str, data: bytes) -> None:
        with self._translated(f"write {name} to"):
            self.fs.pipe_file(self._full(name), data, timeout=GRACE_SECONDS)

    def put(self, path: Path, name: str) -> None:
        sent = path.stat().st_size, _crc32c(path)
        size = sent[0]
        if size >= AT_ONCE:  # a long upload: look first
            with suppress(FileNotFoundError), self._translated(f"look for {name} in"):
                if self._stored(name) == sent:
                    return
                raise FileExistsError(f"{self.url}/{name}")
        deadline = GRACE_SECONDS + size / SLOWEST
        for attempt in range(1, UPLOADS + 1):
            with self._translated(f"upload {name} to"):
                try:
                    if size < AT_ONCE:
                        send = partial(self.fs.pipe_file, self._full(name), path.read_bytes())
                    else:
                        send = partial(self.fs.put_file, str(path), self._full(name))
                    send(mode="create", consistency="none", timeout=deadline)
                except FileExistsError:
                    if attempt == 1 and self._stored(name) != sent:
                        raise
                if self._stored(name) == sent:
                    return
            self.delete([name])
            time.sleep(random.random() * attempt)
        raise StoreUnavailable(
            f"{name} arrived damaged at {self.url} {UPLOADS} times: check the network and try again."
        )

    def fetch(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._translated(f"fetch {name} from"):
            size = int(self.fs.info(self._full(name), timeout=GRACE_SECONDS)["size"])
            deadline = GRACE_SECONDS + size / SLOWEST
            self.fs.get_file(self._full(name), str(path), consistency="none", timeout=deadline)

    def find(self, prefix: str) -> dict[str, Found]:
        base = self._full(prefix)
        with self._translated("list"):
            try:
                listing = self.fs.find(base, detail=True, timeout=GRACE_SECONDS)
            except FileNotFoundError as error:  # an empty prefix is no error
                raise self._no_bucket() from error
        return {
            name.removeprefix(base).lstrip("/"): Found(int(info["size"]), info["mtime"].timestamp())
            for name, info in listing.items()
            if name != base
        }

    def folders(self, prefix: str = "") -> list[str]:
        with self._translated("list"):
            try:
                listing = self.fs.ls(self._full(prefix), detail=True, timeout=GRACE_SECONDS)
            except FileNotFoundError:
                return []
        return sorted(info["name"].rstrip("/").rpartition("/")[2] for info in listing if info["type"] == "directory")

    def delete(self, names: list[str]) -> None:
        def remove(name: str) -> None:
            with self._translated(f"delete {name} from"), suppress(FileNotFoundError):
                self.fs.rm_file(self._full(name), timeout=GRACE_SECONDS)

        parallel(remove, names)

    def _no_bucket(self) -> InputError:
        return InputError(f"store.root={self.url}: there is no bucket '{self.bucket}'; create it or correct the name.")

    def _full(self, name: str) -> str:
        return f"{self._base}/{name}".rstrip("/")

    def _stored(self, name: str) -> tuple[int, str]:
        info = self.fs.info(self._full(name), timeout=GRACE_SECONDS)
        return int(info["size"]), info["crc32c"]

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """gcsfs's many exceptions as FileNotFoundError, FileExistsError, InputError or StoreUnavailable."""
        with translated(self.url, what):
            yield


@contextmanager
def translated(url: str, what: str) -> Iterator[None]:
    """Errors of a request about `url` as InputError (will not pass by itself) or StoreUnavailable (may pass)."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except google.auth.exceptions.GoogleAuthError as error:
        raise InputError(
            f"Cannot {what} {url}: no valid Google credentials; run 'gcloud auth application-default login' "
            "or attach a service account."
        ) from error
    except HttpError as error:
        if str(error.code) == "401":
            raise InputError(
                f"Cannot {what} {url}: the credentials are not accepted (401); log in again with "
                "'gcloud auth application-default login'."
            ) from error
        raise StoreUnavailable(f"Cannot {what} {url}: the server answered {error.code}; try again later.") from error
    except FSTimeoutError as error:
        raise StoreUnavailable(f"Cannot {what} {url}: no answer in time; check the network and try again.") from error
    except (aiohttp.ClientError, ChecksumError, requests.exceptions.RequestException, ConnectionError) as error:
        raise StoreUnavailable(
            f"Cannot {what} {url}: {type(error).__name__}; check the network and try again."
        ) from error
    except OSError as error:
        if str(error).startswith("Forbidden"):
            raise InputError(
                f"Cannot {what} {url}: access is refused (403); grant this account roles/storage.objectUser "
                "on the bucket."
            ) from error
        raise


def filesystem() -> Any:
    """The gcsfs filesystem as everything here uses it."""
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints a traceback for what we say in one sentence
    emulated = os.environ.get("STORAGE_EMULATOR_HOST")
    return gcsfs.GCSFileSystem(
        token="anon" if emulated else None,
        endpoint_url=emulated,  # part of the key under which fsspec keeps its instances
        consistency="md5",
        use_listings_cache=False,
        requests_timeout=REQUEST_SECONDS,
    )


def _crc32c(path: Path) -> str:
    """As the server tells it of every object; 18 times as fast as the MD5 that gcsfs would take on its event loop."""
    checksum = Checksum()
    with path.open("rb") as stream:
        for _ in checksum.consume(stream, 2**20):
            pass
    return base64.b64encode(checksum.digest()).decode()
