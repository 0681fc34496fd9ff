"""How sure a score is: bootstrap intervals, and the paired bootstrap of two runs on the same examples.

Resampling n verdicts with replacement is drawing from a multinomial distribution over the values that occur, so a
thousand resamples of ten thousand examples cost a thousand draws, not ten million. Tasks are resampled each on their
own (CORE is a mean over tasks, every task counts the same however many examples it has); nothing here knows of files.

A bootstrap only sees the examples: an accuracy of exactly 0 or 1 has an interval of no width, and the spread between
training runs of different seeds is not in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.score import centre

Interval = tuple[float, float]
LEVEL = 0.95


@dataclass(frozen=True)
class Outcome:
    """The verdicts of one task, keyed by example, and the accuracy of guessing."""

    correct: Mapping[int, bool]
    baseline: float

    @property
    def accuracy(self) -> float:
        return sum(self.correct.values()) / len(self.correct)

    @property
    def centred(self) -> float:
        return centre(self.accuracy, self.baseline)


@dataclass(frozen=True)
class Difference:
    """B minus A, on the examples that both have."""

    n: int
    a: float
    b: float
    ci95: Interval
    p_value: float  # two-sided: how often resampling turns the sign, doubled

    @property
    def difference(self) -> float:
        return self.b - self.a


def accuracy_interval(outcome: Outcome, samples: int, label: str = "") -> Interval:
    """95 % interval of a task's accuracy."""
    return _percentiles(_resampled_accuracy(outcome, samples, label))


def core_interval(outcomes: Mapping[str, Outcome], samples: int) -> Interval:
    """95 % interval of CORE, the mean of the centred accuracies."""
    draws = [(_resampled_accuracy(o, samples, label) - o.baseline) / (1 - o.baseline) for label, o in outcomes.items()]
    return _percentiles(np.mean(draws, axis=0))


def compare_task(a: Outcome, b: Outcome, samples: int, label: str = "") -> Difference:
    """Accuracy of B minus that of A, the examples resampled for both at once. Raises ValueError if they share none."""
    shared, draws = _resampled_difference(a, b, samples, label)
    return _difference(len(shared), _mean(a.correct[i] for i in shared), _mean(b.correct[i] for i in shared), draws)


def compare_core(a: Mapping[str, Outcome], b: Mapping[str, Outcome], samples: int) -> Difference:
    """CORE of B minus that of A over the tasks and examples that both have."""
    labels = [label for label in a if label in b]
    if not labels:
        raise ValueError("the two runs have no task in common")
    parts, draws, n = [], [], 0
    for label in labels:
        shared, difference = _resampled_difference(a[label], b[label], samples, label)
        scale = 1.0 - a[label].baseline
        parts.append([centre(_mean(side[label].correct[i] for i in shared), a[label].baseline) for side in (a, b)])
        draws.append(difference / scale)
        n += len(shared)
    core_a, core_b = np.mean(parts, axis=0)
    return _difference(n, float(core_a), float(core_b), np.mean(draws, axis=0))


def _generator(label: str) -> np.random.Generator:
    """A generator of its own for each task, so that a task's interval does not depend on which others were run."""
    return np.random.default_rng(zlib.crc32(label.encode()))


def _resampled_accuracy(outcome: Outcome, samples: int, label: str) -> np.ndarray:
    n = len(outcome.correct)
    return _generator(label).binomial(n, outcome.accuracy, samples) / n


def _resampled_difference(a: Outcome, b: Outcome, samples: int, label: str) -> tuple[Sequence[int], np.ndarray]:
    shared = [i for i in a.correct if i in b.correct]
    if not shared:
        raise ValueError(f"the two runs have no example of task '{label}' in common")
    steps = np.array([int(b.correct[i]) - int(a.correct[i]) for i in shared])
    lost, same, won = (np.count_nonzero(steps == step) for step in (-1, 0, 1))
    counts = _generator(label).multinomial(len(shared), np.array([lost, same, won]) / len(shared), samples)
    return shared, (counts[:, 2] - counts[:, 0]) / len(shared)


def _difference(n: int, a: float, b: float, draws: np.ndarray) -> Difference:
    turned = min(float(np.mean(draws <= 0)), float(np.mean(draws >= 0)))
    return Difference(n, a, b, _percentiles(draws), min(1.0, 2 * turned))


def _percentiles(draws: np.ndarray) -> Interval:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _mean(values) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
