"""Small runs written by hand, so that every number of a figure can be worked out on paper."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from orderlens.analysis.estimate import Resampling
from orderlens.analysis.study import Options, Study
from orderlens.store.reader import memory_run

EOS, SPECIAL = 0, 1
PREFIX = 4


def trace(sample, order, path, tokens, logq, *, seed=None, temperature=None, block_size=None, hits=None):
    """Return the reveals of one trace: ``path`` holds places from 0, ``tokens`` is in text order."""
    path, n = np.asarray(path), len(path)
    shown = np.asarray(tokens)[path]
    values = np.asarray(logq, np.float64)
    hit = np.exp(values) > 0.5 if hits is None else np.asarray(hits)
    texts, ints, reals = pa.string(), pa.int32(), pa.float64()
    return pa.table(
        {
            "sample_id": pa.array([sample] * n, texts),
            "task": pa.array([None] * n, texts),
            "order": pa.array([order] * n, texts),
            "seed": pa.array([seed] * n, pa.int64()),
            "temperature": pa.array([temperature] * n, reals),
            "sample_seed": pa.array([None if not temperature else 0] * n, pa.int64()),
            "block": pa.array(path // (block_size or n), ints),
            "step": pa.array(np.arange(n), ints),
            "position": pa.array(path + PREFIX, ints),
            "token_id": pa.array(shown, ints),
            "logq": pa.array(values),
            "max_logprob": pa.array(np.minimum(values + 0.1, 0.0)),
            "second_logprob": pa.array(values - 1.0),
            "entropy": pa.array(-values),
            "is_eos": pa.array(shown == EOS),
            "is_special": pa.array(shown == SPECIAL),
            "is_overflow": pa.array([False] * n),
            "is_argmax": pa.array(hit),
            "n_tied": pa.array([1] * n, ints),
            "n_committed": pa.array([1] * n, ints),
        }
    )


def study_of(traces, evaluator=None, **tables):
    """Return a study over hand-made traces."""
    reps = Resampling(reps=50)
    run = memory_run({"reveals": pa.concat_tables(traces), **tables}, {"kind": "by hand"})
    return Study(run, Options(reps, evaluator=evaluator))


def tokens_table(pieces):
    """Return the table of token texts."""
    return pa.table({"token_id": pa.array(list(pieces), pa.int32()), "piece": list(pieces.values())})


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
