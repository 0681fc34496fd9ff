"""The error of a wrong configuration: one sentence that says what, where and what to do."""

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """A configuration that cannot run as it stands. `str(error)` is the sentence a user reads; exit status 2."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`" Did you mean 'base.steps'?"`, or an empty string when nothing is near."""
    near = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""
