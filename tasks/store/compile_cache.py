"""The persistent compilation cache: on local disk for JAX, mirrored to the root so that a new machine compiles nothing.

Each process gives JAX a directory of its own, filled from `<root>/compile-cache/<platform, topology, versions>/`
before the first compilation; a thread stores new entries there as soon as they are written. The stored name ends in
the entry's checksum: a damaged entry is recognised, dropped and compiled again, and never an error. JAX gets no gs://
directory itself, since with a dead endpoint it does not come up at all.

Nothing here is ever fatal or waited for without end: a disk that refuses the directory, or a disk or bucket that does
not answer, costs compilations.
"""

import hashlib
import platform
import shutil
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.stage import InputError
from tasks.store.gather import parallel
from tasks.store.roots import StoreUnavailable, sha256_file
from tasks.store.store import Store

FOLDER = "compile-cache"
STALE_SECONDS = 30 * 86_400
"""Age at which the directory of a process that was killed is removed."""
PROBE_SECONDS = 10.0
"""Longest wait for the local disk to take a directory and a file."""
MIRROR_SECONDS = 60.0
"""Longest wait for the root, before the first compilation and after the last; what comes later is still of use."""
POLL_SECONDS = 1.0
"""How often new entries are looked for; one that kept its size for so long is complete."""
ZLIB = b"\x78"
"""How an entry begins that JAX compressed with zlib."""
HIT = "/jax/compilation_cache/cache_hits"
MISS = "/jax/compilation_cache/cache_misses"
SETTINGS = {
    # The defaults put paths of the cache directory into the key, so that a copied cache misses every time (measured).
    "jax_persistent_cache_enable_xla_caches": "none",
    # The defaults leave out what compiles in under a second: at small sizes, everything.
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


class CompileCache:
    """JAX's cache directory of this process and its mirror at the root. Counts hits and misses."""

    def __init__(self, store: Store, tag: str, log: Callable[[str], None]) -> None:
        self.hits = self.misses = 0
        self._store, self._prefix, self._log = store, f"{FOLDER}/{tag}", log
        self.directory = store.cache_dir / "compile" / uuid.uuid4().hex
        self._stored: set[str] = set()
        self._sizes: dict[str, int] = {}

    def open(self) -> None:
        """Make the directory and try that it takes files; remove those of processes that are long gone."""
        self._arriving.mkdir(parents=True)
        probe = self._arriving / "probe"
        probe.write_bytes(b"probe")
        probe.unlink()
        for other in self.directory.parent.iterdir():
            if time.time() - other.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(other, ignore_errors=True)

    @property
    def _arriving(self) -> Path:
        """Where entries lie that are not verified yet; JAX does not look into folders."""
        return self.directory / "arriving"

    def pull(self) -> int:
        """Fill the directory with what the root has; returns the number of entries."""
        names = [name for name in self._store.root.find(self._prefix) if "~" in name]
        return sum(parallel(self._pull_one, names))

    def push(self, *, all_complete: bool = False) -> int:
        """Store entries that are new and complete; returns their number. `all_complete`: nothing is compiling now."""
        sizes = {path.name: path.stat().st_size for path in self.directory.iterdir() if path.is_file()}
        ready = [name for name, size in sizes.items() if all_complete or self._sizes.get(name) == size]
        self._sizes = sizes
        ready = [name for name in ready if name not in self._stored]
        for name in ready:
            path = self.directory / name
            self._store.root.put(path, f"{self._prefix}/{name}~{sha256_file(path)}")
            self._stored.add(name)
        return len(ready)

    def count(self, event: str, **_: Any) -> None:
        """A listener for jax.monitoring."""
        self.hits += event == HIT
        self.misses += event == MISS

    def _pull_one(self, stored: str) -> bool:
        name, _, checksum = stored.rpartition("~")
        where = f"{self._prefix}/{stored}"
        arriving = self._arriving / name
        try:
            self._store.root.fetch(where, arriving)
            if sha256_file(arriving) == checksum and _is_whole(arriving):
                self._stored.add(name)
                arriving.replace(self.directory / name)
                return True
            self._log(f"{where} is damaged; it is dropped and compiled again")
            self._store.root.delete([where])
        except FileNotFoundError:  # collected meanwhile
            pass
        arriving.unlink(missing_ok=True)
        return False


@contextmanager
def enabled(store: Store, tag: str, log: Callable[[str], None]) -> Iterator[CompileCache]:
    """JAX compiles through the cache while inside; without it where the local disk does not take the directory."""
    import jax
    from jax import monitoring
    from jax.experimental.compilation_cache import compilation_cache

    cache = CompileCache(store, tag, log)
    if not _tolerantly(cache.open, PROBE_SECONDS, "not used", log):
        yield cache
        return
    wanted = {**SETTINGS, "jax_compilation_cache_dir": str(cache.directory)}
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX keeps the directory that it used first
    monitoring.register_event_listener(cache.count)
    ended = threading.Event()

    def pushes() -> None:
        while not ended.wait(POLL_SECONDS):
            _tolerantly(cache.push, MIRROR_SECONDS, "not mirrored", log)

    thread = threading.Thread(target=pushes, name="compile-cache", daemon=True)
    try:
        _tolerantly(cache.pull, MIRROR_SECONDS, "not mirrored", log)
        thread.start()
        yield cache
    finally:
        ended.set()
        if thread.ident:
            thread.join()
        _tolerantly(lambda: cache.push(all_complete=True), MIRROR_SECONDS, "not mirrored", log)
        monitoring.unregister_event_listener(cache.count)
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        shutil.rmtree(cache.directory, ignore_errors=True)


def tag(hardware: Any) -> str:
    """Platform, topology and versions: entries elsewhere cannot be of use. JAX's own key decides which of these is.

    Taken from the config and not from JAX's devices, since asking for those must wait for jax.distributed (B51).
    """
    versions = []
    for package in ("jax", "jaxlib", "libtpu"):
        try:
            versions.append(f"{package}-{metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    place = hardware.topology or hardware.name
    if hardware.platform == "cpu":  # programs for the processor at hand do not run on every other
        place += "-" + hashlib.sha256(_processor().encode()).hexdigest()[:8]
    return "-".join([hardware.platform, place.replace(":", "-"), *versions])


def _is_whole(path: Path) -> bool:
    """False for an entry that was stored half-written: its checksum fits, and JAX would stumble over it each time."""
    with path.open("rb") as stream:
        piece, unpacking = stream.read(2**20), zlib.decompressobj()
        if not piece.startswith(ZLIB):  # zstd, where Python has it: the checksum must do
            return bool(piece)
        try:
            while piece:
                unpacking.decompress(piece)
                piece = stream.read(2**20)
        except zlib.error:
            return False
        return unpacking.eof


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _tolerantly(do: Callable[[], Any], seconds: float, instead: str, log: Callable[[str], None]) -> bool:
    """Whether `do` came to its end within `seconds`. It runs in a thread, which is left alone if it hangs."""
    done: list[bool] = []
    problem = f"no answer within {seconds:g} s"

    def tried() -> None:
        nonlocal problem
        try:
            do()
            done.append(True)
        except (StoreUnavailable, InputError, OSError) as error:
            problem = str(error)

    thread = threading.Thread(target=tried, name="compile-cache", daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        log(f"the compilation cache is {instead}: {problem}")
    return bool(done)
