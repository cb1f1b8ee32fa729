"""Small made-up runs: traces with chosen paths, verdicts with a chosen dependence on the trace."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from orderlens.store.reader import memory_run

EOS, SPECIAL = 0, 1


def trace(
    sample_id,
    order,
    logq,
    *,
    path=None,
    tokens=None,
    start=32,
    block_size=32,
    task=None,
    seed=None,
    temperature=None,
    sample_seed=None,
    requested=None,
):
    """Return the reveals of one trace; ``path`` holds positions counted from the first target position."""
    n = len(logq)
    path = np.arange(n) if path is None else np.asarray(path)
    tokens = np.arange(n) % 7 + 2 if tokens is None else np.asarray(tokens)
    shown = tokens[path]  # token revealed at each step
    logq = np.asarray(logq, np.float64)
    return pa.table(
        {
            "sample_id": pa.array([sample_id] * n, pa.string()),
            "task": pa.array([task] * n, pa.string()),
            "order": pa.array([order] * n, pa.string()),
            "seed": pa.array([seed] * n, pa.int64()),
            "temperature": pa.array([temperature] * n, pa.float64()),
            "sample_seed": pa.array([sample_seed] * n, pa.int64()),
            "block": pa.array(path // block_size, pa.int32()),
            "step": pa.array(np.arange(n), pa.int32()),
            "position": pa.array(path + start, pa.int32()),
            "token_id": pa.array(shown, pa.int32()),
            "logq": pa.array(logq),
            "max_logprob": pa.array(np.minimum(logq + 0.1, 0.0)),
            "second_logprob": pa.array(np.minimum(logq, 0.0) - 1.0),
            "entropy": pa.array(np.abs(logq)),
            "is_eos": pa.array(shown == EOS),
            "is_special": pa.array(shown == SPECIAL),
            "is_overflow": pa.array(path >= (n if requested is None else requested)),
            "is_argmax": pa.array(np.exp(logq) > 0.4),
            "n_tied": pa.array([1] * n, pa.int32()),
            "n_committed": pa.array([1] * n, pa.int32()),
        }
    )


def block_path(rng, n, block_size, order):
    """Return a path that goes block by block: left to right, reversed, or random inside each."""
    parts = [np.arange(a, min(a + block_size, n)) for a in range(0, n, block_size)]
    rules = {"forced-ar": lambda p: p, "reverse-ar": lambda p: p[::-1]}
    return np.concatenate([rules.get(order, rng.permutation)(part) for part in parts])


def make_run(tables, **others):
    """Return a run in memory from traces (and other tables)."""
    return memory_run({"reveals": pa.concat_tables(tables), **others}, {"model": "made up"})


def scoring_run(n_samples=12, orders=("forced-ar", "max-prob", "oracle-min-q"), n=64, seeds=0, seed=0):
    """Return a scored run; ``seeds`` adds the random order with that many seeds."""
    rng = np.random.default_rng(seed)
    named = [(order, None) for order in orders] + [("random", k) for k in range(seeds)]
    tables = []
    for sample in range(n_samples):
        level = rng.gamma(4.0, 0.5)
        for order, order_seed in named:
            scale = level * (1.3 if order == "oracle-min-q" else 1.0 + 0.05 * (order_seed or 0))
            logq = -rng.gamma(0.5, 2 * scale, n)
            path = block_path(rng, n, 32, order)
            tables.append(trace(f"s{sample}", order, logq, path=path, seed=order_seed))
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
                path = block_path(rng, n, 32, order)
                tables.append(trace(f"{prefix}{item}", order, logq, path=path, tokens=tokens, **key))
                correct = bool(rng.random() < 1 / (1 + np.exp(-effect * (1.0 + 3 * logq.mean()))))
                verdicts.append(
                    {"sample_id": f"{prefix}{item}", "order": order, "correct": correct, "grader": "g", **key}
                )
    columns = {name: [row[name] for row in verdicts] for name in verdicts[0]}
    types = {"seed": pa.int64(), "temperature": pa.float64()}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
    outputs = table.select(["sample_id", "task", "order", "seed", "temperature"])
    n_rows = outputs.num_rows
    outputs = outputs.append_column("text", pa.array([f"text {i % 5}" for i in range(n_rows)]))
    outputs = outputs.append_column("prompt_text", pa.array(["prompt"] * n_rows))
    return make_run(tables, verdicts=table, outputs=outputs)


@pytest.fixture(scope="session")
def builders():
    """Return the functions that make traces and runs."""

    class Builders:
        trace = staticmethod(trace)
        make_run = staticmethod(make_run)
        scoring_run = staticmethod(scoring_run)
        graded_run = staticmethod(graded_run)
        block_path = staticmethod(block_path)

    return Builders
