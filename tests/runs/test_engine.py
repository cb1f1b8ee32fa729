"""Who computes, as plain data: what is asked for, and what cannot be."""

from __future__ import annotations

import pytest

from orderlens.errors import UserInputError
from orderlens.runs.options import Engine, as_engine


@pytest.mark.parametrize(
    ("given", "workers", "kind", "count"),
    [
        (None, None, "local", None),
        ("local", 3, "local", 3),
        ("ray", None, "ray", None),
        (Engine("ray", 2, address="auto"), None, "ray", 2),
    ],
)
def test_names_and_engines(given, workers, kind, count):
    found = as_engine(given, workers)
    assert (found.kind, found.workers) == (kind, count)


def test_workers_are_given_once():
    with pytest.raises(UserInputError, match="set its workers and address there"):
        as_engine(Engine("local", 2), 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "slurm"}, "engine='slurm' is unknown; allowed: local, ray"),
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"workers": 1.5}, "workers=1.5 must be a whole number"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"attempts": 0}, "attempts=0 must be at least 1"),
        ({"stall_s": 0}, "stall_s=0 must be a number of seconds above 0"),
        ({"stall_s": float("nan")}, "must be a number of seconds above 0"),
        ({"address": "auto"}, "address='auto' is for Ray clusters only; add --engine ray"),
        ({"kind": "ray", "address": "http://x"}, "must be auto or HOST:PORT of the cluster's head"),
    ],
)
def test_what_cannot_be(fields, message):
    with pytest.raises(UserInputError, match=message):
        Engine(**fields)
