"""Small made-up runs: traces with chosen paths, verdicts with a chosen dependence on the trace."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from orderlens.analysis import Options, Resampling, Study
from orderlens.testing import make_run, make_trace, random_path, random_trace

EOS = 0

QUICK = Options(resampling=Resampling(reps=30), null_reps=20)

trace = partial(make_trace, n_prompt=32)


def scoring_run(n_samples=12, orders=("forced-ar", "max-prob", "oracle-min-q"), n=64, seeds=0, seed=0):
    """Return a scored run; ``seeds`` adds the random order with that many seeds."""
    rng = np.random.default_rng(seed)
    named = [(order, None) for order in orders] + [("random", k) for k in range(seeds)]
    tables = []
    for sample in range(n_samples):
        level = rng.gamma(4.0, 0.5)
        for order, order_seed in named:
            scale = level * (1.3 if order == "oracle-min-q" else 1.0 + 0.05 * (order_seed or 0))
            tables.append(
                random_trace(rng, f"s{sample}", order, n, scale=scale, seed=order_seed, n_prompt=32)
            )
    return make_run(tables)


def graded_run(
    n_items=60,
    orders=("forced-ar", "max-prob", "random"),
    tasks=("arith",),
    n=48,
    seed=0,
    effect=2.0,
    prefix="i",
):
    """Return a generated and graded run in which a higher mean makes correct answers likelier."""
    rng = np.random.default_rng(seed)
    tables, verdicts = [], []
    for task in tasks:
        for item in range(n_items):
            for order in orders:
                scale = rng.gamma(4.0, 0.08) * (2.0 if order == "random" else 1.0)
                tokens = rng.integers(2, 30, n)
                tokens[n - rng.integers(0, 8) :] = EOS
                logq = -rng.gamma(0.5, 2 * scale, n)
                key = {"task": task, "seed": 0 if order == "random" else None, "temperature": 0.0}
                path = random_path(rng, n, order)
                tables.append(trace(f"{prefix}{item}", order, logq, path=path, tokens=tokens, **key))
                correct = bool(rng.random() < 1 / (1 + np.exp(-effect * (1.0 + 3 * logq.mean()))))
                verdicts.append(
                    {"sample_id": f"{prefix}{item}", "order": order, "correct": correct, "grader": "g", **key}
                )
    outputs = [
        {name: value for name, value in row.items() if name not in ("correct", "grader")}
        | {"text": f"text {place % 5}", "prompt_text": "prompt"}
        for place, row in enumerate(verdicts)
    ]
    return make_run(tables, verdicts=verdicts, outputs=outputs)


def table(run, name, options=QUICK):
    """Return one table of a run, with few resamples."""
    return Study(run, options).table(name)


@pytest.fixture(scope="session")
def scored():
    """Return a scored run with nine random orders; not to be changed."""
    return scoring_run(seeds=9)


@pytest.fixture(scope="session")
def graded():
    """Return a graded run of two tasks; not to be changed."""
    return graded_run(tasks=("arith", "ifeval"))


@pytest.fixture(scope="session")
def builders():
    """Return the functions that make traces and runs."""

    class Builders:
        QUICK = QUICK
        table = staticmethod(table)
        trace = staticmethod(trace)
        make_run = staticmethod(make_run)
        scoring_run = staticmethod(scoring_run)
        graded_run = staticmethod(graded_run)
        random_path = staticmethod(random_path)

    return Builders
