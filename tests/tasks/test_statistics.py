"""Intervals and paired differences, against plain resampling and in cases where the answer is known."""

import numpy as np
import pytest

from tasks.statistics import Outcome, accuracy_interval, compare_core, compare_task, core_interval


def outcome(*verdicts, baseline=0.0):
    return Outcome(dict(enumerate(bool(v) for v in verdicts)), baseline)


def test_an_interval_is_that_of_plain_resampling():
    rng = np.random.default_rng(0)
    verdicts = rng.random(400) < 0.3
    low, high = accuracy_interval(outcome(*verdicts), 20_000, "task")
    plain = verdicts[rng.integers(0, 400, (20_000, 400))].mean(axis=1)
    assert (low, high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.004)
    assert low < verdicts.mean() < high


def test_an_interval_does_not_depend_on_other_tasks_and_repeats():
    one = accuracy_interval(outcome(1, 0, 1, 0, 1), 500, "a")
    assert one == accuracy_interval(outcome(1, 0, 1, 0, 1), 500, "a")
    assert accuracy_interval(outcome(1, 1, 1), 500) == (1.0, 1.0)


def test_core_gives_every_task_the_same_weight():
    """A large exact task and a small noisy one: the width comes from the small one, halved."""
    tasks = {"large": outcome(*[1] * 1000), "small": outcome(*[1, 0] * 50)}
    low, high = core_interval(tasks, 20_000)
    small = accuracy_interval(tasks["small"], 20_000, "small")
    assert (low, high) == pytest.approx(tuple((1 + bound) / 2 for bound in small), abs=1e-9)


def test_centring_widens_by_the_baseline():
    verdicts = [1, 0] * 200
    plain = core_interval({"t": outcome(*verdicts)}, 5000)
    centred = core_interval({"t": outcome(*verdicts, baseline=0.5)}, 5000)
    assert centred[1] - centred[0] == pytest.approx(2 * (plain[1] - plain[0]))


def test_pairing_sees_a_difference_that_separate_intervals_hide():
    rng = np.random.default_rng(1)
    a = rng.random(500) < 0.5
    b = a | (rng.random(500) < 0.05)  # never worse than A
    apart = [accuracy_interval(outcome(*v), 4000) for v in (a, b)]
    assert apart[0][1] > apart[1][0]
    found = compare_task(outcome(*a), outcome(*b), 4000)
    assert found.difference == pytest.approx(b.mean() - a.mean())
    assert found.ci95[0] > 0
    assert found.p_value < 0.01


def test_equal_runs_do_not_differ():
    same = outcome(*[1, 0, 1] * 30)
    found = compare_task(same, same, 1000)
    assert (found.difference, found.ci95, found.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_only_shared_examples_and_tasks_are_compared():
    a = {"t": Outcome({0: True, 1: False, 2: True}, 0.0), "only": outcome(1)}
    b = {"t": Outcome({1: True, 2: True, 3: False}, 0.0)}
    found = compare_core(a, b, 1000)
    assert (found.n, found.a, found.b) == (2, 0.5, 1.0)
    with pytest.raises(ValueError, match="no task in common"):
        compare_core({"x": outcome(1)}, {"y": outcome(1)}, 10)
    with pytest.raises(ValueError, match="no example of task 't'"):
        compare_task(Outcome({0: True}, 0.0), Outcome({1: True}, 0.0), 10, "t")


def test_differences_of_core_are_centred():
    a, b = outcome(*[1, 0] * 100, baseline=0.5), outcome(*[1, 1, 1, 0] * 50, baseline=0.5)
    found = compare_core({"t": a}, {"t": b}, 2000)
    assert found.difference == pytest.approx(0.5)
    assert found.ci95[0] < 0.5 < found.ci95[1]
