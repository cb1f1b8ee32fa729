"""The length of training and the learning rate along it."""

from __future__ import annotations

import pytest

from orderlens.errors import UserInputError
from orderlens.training.optimiser import LearningRateSchedule


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either in steps or in minutes"),
        ({"steps": 3, "max_minutes": 2.0}, "either in steps or in minutes"),
        ({"steps": 0}, "must be positive"),
        ({"steps": -4}, "must be positive"),
        ({"max_minutes": 0.0}, "must be positive"),
    ],
)
def test_a_length_that_is_none_is_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        LearningRateSchedule(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (4, 1.0), (5, 1.0), (6, 0.8), (9, 0.2), (10, 0.0), (12, 0.0)],
)
def test_by_steps(step: int, factor: float) -> None:
    schedule = LearningRateSchedule(steps=10, warmup_steps=4, hold=0.5)
    assert schedule.factor(step, 1e9) == pytest.approx(factor)
    assert schedule.progress(step, 1e9) == pytest.approx(step / 10)


@pytest.mark.parametrize(
    ("seconds", "factor"), [(0, 1.0), (60, 1.0), (72, 0.8), (90, 0.5), (120, 0.0), (500, 0.0)]
)
def test_by_time(seconds: float, factor: float) -> None:
    schedule = LearningRateSchedule(max_minutes=2.0, warmup_steps=1, hold=0.5)
    assert schedule.factor(10**6, seconds) == pytest.approx(factor)
    assert schedule.progress(10**6, seconds) == pytest.approx(seconds / 120)


def test_the_warm_up_and_the_decay_multiply() -> None:
    schedule = LearningRateSchedule(steps=10, warmup_steps=20, hold=0.0)
    assert schedule.factor(7, 0.0) == pytest.approx(8 / 20 * 0.3)
    assert LearningRateSchedule(steps=10, warmup_steps=0, hold=0.0).factor(0, 0.0) == 1.0
