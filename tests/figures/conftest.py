"""Small runs written by hand, so that every number of a figure can be worked out on paper."""

from __future__ import annotations

import pytest

from orderlens.analysis.study import Options, Study
from orderlens.metrics.estimate import Resampling
from orderlens.testing import make_run, make_table, make_trace

EOS, SPECIAL = 0, 1
PREFIX = 4


def trace(sample, order, path, tokens, logq, *, seed=None, temperature=None, block_size=None, hits=None):
    """Return the reveals of one trace: ``path`` holds places from 0, ``tokens`` is in text order."""
    return make_trace(
        sample,
        order,
        logq,
        path=path,
        tokens=tokens,
        seed=seed,
        temperature=temperature,
        block_size=block_size or len(path),
        is_argmax=hits,
        n_prompt=PREFIX,
    )


def study_of(traces, evaluator=None, **tables):
    """Return a study over hand-made traces."""
    return Study(make_run(traces, **tables), Options(Resampling(reps=50), evaluator=evaluator))


def tokens_table(pieces):
    """Return the table of token texts."""
    return make_table("tokens", [{"token_id": token, "piece": piece} for token, piece in pieces.items()])


@pytest.fixture
def by_hand():
    """Return the builders."""

    class Builders:
        EOS = EOS
        SPECIAL = SPECIAL
        trace = staticmethod(trace)
        study_of = staticmethod(study_of)
        tokens_table = staticmethod(tokens_table)

    return Builders


@pytest.fixture
def scored(by_hand):
    """Two sequences under four orders (random with two seeds), log q chosen by hand."""
    logq = {
        "forced-ar": ([-1.0, -1.0, -1.0, -1.0], [-2.0, -2.0, -2.0, -2.0]),
        "reverse-ar": ([-0.5, -1.5, -0.5, -1.5], [-1.5, -2.5, -1.5, -2.5]),
        "oracle-min-q": ([-0.1, -0.1, -0.1, -5.7], [-0.1, -0.1, -0.1, -9.7]),
    }
    paths = {"forced-ar": [0, 1, 2, 3], "reverse-ar": [3, 2, 1, 0], "oracle-min-q": [3, 1, 2, 0]}
    traces = [
        by_hand.trace(f"s{place}", order, paths[order], [5, 6, 7, 8], values)
        for order, both in logq.items()
        for place, values in enumerate(both)
    ]
    for seed, path in enumerate(([1, 0, 3, 2], [2, 3, 0, 1])):
        for place in (0, 1):
            values = [-1.0 - place - seed, -1.0, -1.0, -1.0 - place]
            traces.append(by_hand.trace(f"s{place}", "random", path, [5, 6, 7, 8], values, seed=seed))
    return by_hand.study_of(traces)
