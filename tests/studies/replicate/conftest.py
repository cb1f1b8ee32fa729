"""One small replication on the incoherent control, computed once for all tests that only read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orderlens.studies.replicate import run_plan
from orderlens.studies.replicate_plan import make_plan

MODEL = "hmm:incoherence=0.5"


def plan_with(**changes):
    """Return a plan that takes seconds: 8 texts, one block, few orders; all stages are there."""
    plan = make_plan(
        "demo",
        MODEL,
        "passages",
        n_texts=8,
        target_tokens=32,
        temperatures=(1.0, 1.5),
        evaluator="none-such",
        batch_size=2,
        score_orders=(
            "forced-ar",
            "reverse-ar",
            "random:0",
            "random:1",
            "max-prob",
            "oracle-max-q",
            "oracle-min-q",
        ),
    )
    return replace(plan, **changes)


@pytest.fixture(scope="session")
def small_plan():
    return plan_with


@pytest.fixture(scope="session")
def replication(tmp_path_factory, quick_figures):
    """Return the results of a finished replication; external perplexity needs torch and weights, not this."""
    with quick_figures():
        return run_plan(plan_with(), tmp_path_factory.mktemp("replication"))
