"""How many texts fit into the time that is left, by a clock that the test moves."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from orderlens.studies.replicate.pace import LEAST, Pace


class Clock:
    """A clock that stands still unless told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def decode(pace, clock, tokens, seconds):
    """Pretend that a stage revealed ``tokens`` in ``seconds``."""
    with pace.watching(lambda label: nullcontext())("stage") as bar:
        bar.set_total(tokens)
        bar(tokens)
        clock.now += seconds


@pytest.fixture
def clock():
    return Clock()


def test_without_a_budget_or_a_speed_the_whole_list_is_taken(clock):
    assert Pace(0.0, clock).fit(1000, 10**9) == 1000
    assert Pace(1.0, clock).fit(1000, 10**9) == 1000


def test_the_number_follows_from_speed_and_time_left(clock):
    pace = Pace(100.0, clock)
    decode(pace, clock, tokens=2000, seconds=20.0)  # 100 tokens a second, 80 s left
    assert pace.fit(20, tokens_per_text=500) == 16
    assert pace.fit(20, tokens_per_text=500, reserved_tokens=3000) == 10
    assert pace.fit(12, tokens_per_text=500) == 12


def test_a_machine_that_gets_slower_takes_fewer_but_never_too_few(clock):
    pace = Pace(100.0, clock)
    decode(pace, clock, tokens=2000, seconds=20.0)
    before = pace.fit(20, 500)
    decode(pace, clock, tokens=1000, seconds=20.0)
    assert LEAST < pace.fit(20, 400) < before
    decode(pace, clock, tokens=100, seconds=100.0)
    assert pace.fit(20, 400) == LEAST
    assert pace.fit(3, 400) == 3  # the list may be shorter than that


def test_what_takes_much_longer_than_the_time_left_is_not_allowed(clock):
    pace = Pace(100.0, clock)
    assert pace.allows(10**9)  # nothing is known yet
    decode(pace, clock, tokens=2000, seconds=20.0)  # 8,000 tokens in the time left
    assert pace.allows(9000)
    assert not pace.allows(11000)
    assert Pace(0.0, clock).allows(10**9)


def test_a_moment_says_nothing(clock):
    pace = Pace(10.0, clock)
    decode(pace, clock, tokens=1, seconds=0.5)
    assert pace.fit(20, 10**6) == 20


def test_advances_reach_the_bar(clock):
    seen = []

    class Bar:
        def __call__(self, steps=1):
            seen.append(steps)

        def set_total(self, total):
            seen.append(-total)

    with Pace(1.0, clock).watching(lambda label: nullcontext(Bar()))("stage") as bar:
        bar.set_total(7)
        bar(3)
        bar(5)
    assert seen == [-7, 3, 4]  # tokens past the requested length do not pass the end
