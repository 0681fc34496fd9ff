"""A few transfers at a time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

PARALLEL = 8
"""Transfers at a time: enough to hide a bucket's latency, few enough not to be throttled."""

T = TypeVar("T")


def parallel(do: Callable[[str], T], names: list[str]) -> list[T]:
    """`do(name)` for every name, in their order; the first exception is raised and what has not begun is dropped."""
    if len(names) < 2:
        return [do(name) for name in names]
    pool = ThreadPoolExecutor(PARALLEL)
    try:
        return list(pool.map(do, names))
    finally:
        pool.shutdown(cancel_futures=True)
