"""Roots of both kinds, a config, and a clock that tests move by hand."""

from dataclasses import replace

import pytest

from conf.compose import compose
from tasks.store.lease import Clock
from tasks.store.roots import open_root

TOY = "tests.tasks.store.toy"


@pytest.fixture(params=["local", "gcs"])
def root_url(request, tmp_path):
    """The address of an empty root, on disk and in a bucket."""
    return str(tmp_path / "root") if request.param == "local" else request.getfixturevalue("gcs_root")


@pytest.fixture
def root(root_url):
    """An empty root, on disk and in a bucket."""
    return open_root(root_url)


@pytest.fixture(scope="session")
def composed():
    """The default config."""
    return compose([])


@pytest.fixture
def config(composed):
    """`config(seed=3, words=["wait:2"])`: the default config with another seed and words for the toy stage."""

    def make(seed=0, words=()):
        return replace(composed, seed=seed, data=replace(composed.data, paths=list(words)))

    return make


class ManualClock(Clock):
    """A clock that stands still until it is slept on or moved."""

    def __init__(self):
        self.time = 0.0
        super().__init__(now=lambda: self.time, sleep=self.move)

    def move(self, seconds):
        self.time += seconds


@pytest.fixture
def clock():
    return ManualClock()
