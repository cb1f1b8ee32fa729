"""Counts of the schedules against tables worked out by hand and against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens.errors import UserInputError
from orderlens.rules import Schedule, parse_policy
from orderlens.rules.commit.schedules import Cosine, Power, Steps, Timesteps
from orderlens.rules.commit.spread import Dilated


def counts(rule, n):
    return np.bincount(rule.passes(n)).tolist()


@pytest.mark.parametrize(
    ("rule", "n", "expected"),
    [
        (Steps(4), 10, [3, 3, 2, 2]),
        (Steps(3), 3, [1, 1, 1]),
        (Steps(9), 2, [1, 1]),
        (Cosine(8), 32, [1, 2, 3, 4, 5, 5, 6, 6]),
        (Cosine(1), 5, [5]),
        (Cosine(12), 4, [1, 1, 1, 1]),
        (Cosine(3), 12, [2, 4, 6]),
        (Power(4), 10, [1, 2, 3, 4]),
        (Power(4, 3), 10, [1, 1, 3, 5]),
        (Timesteps(), 8, [1] * 6 + [2]),
        (Timesteps(4), 32, [7, 8, 8, 9]),
        (Timesteps(2, 0.0), 7, [3, 4]),
        (Dilated(), 32, [2, 2, 4, 8, 16]),
        (Dilated(), 24, [2, 2, 4, 16]),
        (Dilated(), 1, [1]),
        (Dilated(3), 9, [3, 6]),
    ],
)
def test_counts(rule, n, expected):
    assert counts(rule, n) == expected


@pytest.mark.parametrize("n", [32, 128, 256, 512])
def test_dream_with_as_many_steps_as_positions_is_not_one_by_one(n):
    assert counts(Timesteps(), n) == [1] * (n - 2) + [2]


@pytest.mark.parametrize("n", [6, 48, 97, 256])
@pytest.mark.parametrize("steps", [2, 3, 12, 24])
def test_maskgit_counts_are_those_of_exact_arithmetic(n, steps):
    """Where n·cos(π/3) is whole a float may fall short of it by a bit; the exact value is n/2."""
    left, expected = n, []
    for t in range(1, steps + 1):
        wanted = n * math.cos(math.pi * t / (2 * steps))
        near = round(wanted)
        after = near if abs(wanted - near) < 1e-9 else math.floor(wanted)
        after = max(1, min(left - 1, after)) if t < steps else 0
        expected.append(left - after)
        left = after
    assert counts(Cosine(steps), n) == [count for count in expected if count]


@pytest.mark.parametrize("base", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 7, 24, 64])
def test_dilated_levels_are_strides(base, n):
    level = Dilated(base).levels(n)
    assert sorted(set(level.tolist())) == list(range(level.max() + 1))
    stride = n // base
    if stride:
        assert (level[::stride] == 0).all()
    sizes = np.bincount(level)
    assert len(sizes) < 2 or sizes[-1] >= sizes[-2] or level.max() == 0


def test_dilated_sets_are_the_same_under_every_order():
    path, passes = parse_policy("reverse-ar+dilated").planned(8, "a", 0)
    assert path.tolist() == [4, 0, 6, 2, 7, 5, 3, 1]
    assert passes.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps", "takes one value, e.g. steps=8"),
        ("cosine=0", "whole number of at least 1"),
        ("dream=0", "whole number of at least 1"),
        ("dream=8:1", "EPS must be below 1"),
        ("dream=8:2", "between 0 and 1"),
        ("dream=8:0.1:2", "takes up to two values, e.g. dream=32"),
        ("dilated=1", "whole number of at least 2"),
        ("dilated=", "takes one value"),
        ("spaced=0", "whole number of at least 1"),
        ("factor=-1", "a finite number of at least 0"),
        ("factor=inf", "a finite number of at least 0"),
        ("bound=x", "a finite number of at least 0"),
        ("bound", "takes one value, e.g. bound=0.1"),
        ("above=1.1", "between 0 and 1"),
        ("above=0.5:0", "whole number of at least 1"),
        ("unanimous", "takes one value"),
        ("hierarchy=0.4", "takes 2 values, e.g. hierarchy=0.4:0.9"),
        ("hierarchy=0.4:1.2", "between 0 and 1"),
        ("spaced+threshold=0.9", "two rules of one kind"),
        ("spaced+spaced", "two rules of one kind"),
    ],
)
def test_a_wrong_value_gets_one_line(text, message):
    with pytest.raises(Exception, match=message) as caught:
        parse_policy(f"max-prob+{text}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("dream", "dream"),
        ("dream=8:0.0010", "dream=8"),
        ("dream=8:0.01", "dream=8:0.01"),
        ("dilated=2", "dilated"),
        ("bound=.10 + spaced=8", "bound=0.1+spaced"),
        ("above=0.950:4", "above=0.95:4"),
        ("hierarchy=.4:.90", "hierarchy=0.4:0.9"),
    ],
)
def test_specs_are_canonical(text, spec):
    assert parse_policy(f"max-prob+{text}").spec == f"max-prob+{spec}"


def test_ancestral_steps_have_the_published_law():
    """Revealing with probability 1/(N − k) at step k spreads positions evenly over the N steps."""
    n, steps = 4000, 5
    generator, left, taken = np.random.default_rng(0), n, []
    for k in range(steps):
        taken.append(int(generator.binomial(left, 1 / (steps - k))))
        left -= taken[-1]
    drawn = np.bincount((generator.random(n) * steps).astype(int), minlength=steps)
    assert left == 0
    for found in (np.array(taken), drawn):
        assert np.abs(found / n - 1 / steps).max() < 4.5 * np.sqrt(0.16 / n)
    assert parse_policy("random:2+ancestral=4").likelihood() == "estimate"
    assert parse_policy("forced-ar+ancestral=4").likelihood() == "estimate"


@pytest.mark.parametrize("spec", ["steps=1", "cosine=1", "power=1:1", "dream=1"])
def test_one_pass_is_the_smallest_number_and_reveals_everything(spec: str) -> None:
    policy = parse_policy(f"max-prob+{spec}")
    assert isinstance(policy.commit, Schedule)
    assert set(policy.commit.passes(5).tolist()) == {0}
    with pytest.raises(UserInputError, match="at least 1"):
        parse_policy(f"max-prob+{spec.replace('=1', '=0')}")
