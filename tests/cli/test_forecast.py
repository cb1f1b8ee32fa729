"""The warning about long jobs, against a clock that the test moves."""

from __future__ import annotations

import pytest

from orderlens.cli.console import Forecast, Lines


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_job_of_more_than_an_hour_says_so_once_after_a_minute(clock):
    forecast = Forecast("--limit", 65_000_000, clock)
    assert forecast.advance(1000) is None
    clock.now += 59
    assert forecast.advance(300) is None
    clock.now += 2
    warning = forecast.advance(65)
    assert warning.startswith("this will take about 34 days more (1,365 of 65,000,000 in the first 61 s")
    assert warning.endswith("--limit makes it shorter")
    clock.now += 600
    assert forecast.advance(1) is None


@pytest.mark.parametrize(("total", "warns"), [(60_000, False), (62_000, True)])
def test_the_limit_is_an_hour(clock, total, warns):
    forecast = Forecast("--limit", total, clock)
    clock.now += 60
    assert (forecast.advance(1000) is not None) is warns


def test_the_minute_begins_when_the_total_is_known(clock):
    forecast = Forecast("--limit", None, clock)
    clock.now += 100  # a model is loaded
    assert forecast.advance(10) is None
    forecast.set_total(10_000)
    assert forecast.advance(10) is None
    clock.now += 60
    assert "2.8 hours more (60 of 10,000 in the first 60 s" in forecast.advance(50)


def test_a_job_that_stands_still_is_judged_by_its_first_step(clock):
    forecast = Forecast("--steps", 100, clock)
    clock.now += 61
    assert forecast.advance(0) is None
    clock.now += 39
    assert "2.8 hours more (1 of 100 in the first 100 s" in forecast.advance(1)


def test_lines_of_a_log_file_say_it_too(clock):
    said = []
    stage = Lines("scoring", None, Forecast("--limit", None, clock), said.append)
    stage.set_total(1_000_000)
    clock.now += 61
    stage(10)
    assert said[-1].startswith("this will take about 71 days more")
