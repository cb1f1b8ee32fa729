"""A small made run with everything a report shows: scored and generated text, verdicts, policies, texts."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.analysis import Options, Study
from orderlens.analysis.estimate import Resampling
from orderlens.testing import make_run, random_trace

EVIL = "<script>alert(1)</script>\"&'<img src=x onerror=y>\u202e\x00\x1b[31m</style>👩‍👩‍👧" + "w" * 300
ORDERS = ("forced-ar", "random", "max-prob", "oracle-max-q")


def made_run(n_samples=6, n=16, evil=False, scored=True):
    """Return a run in memory; with ``evil`` its ids, texts, tokens and model are hostile."""
    rng = np.random.default_rng(0)
    bad = EVIL if evil else ""
    ids = [f"s{place}{bad}" for place in range(n_samples)]
    keys, traces = [], []
    for name in ids if scored else ():
        traces += [random_trace(rng, name, order, n, block_size=8) for order in ORDERS]
        keys += [({"sample_id": name, "order": order}, None) for order in ORDERS]
    for place, name in enumerate(ids):
        for order, together in (("max-prob", 1), ("max-prob+top=4", 4)):
            more = {"temperature": 0.0, "block_size": 8}
            tokens = np.r_[np.arange(2, n), 0, 0]
            forward = np.arange(n) // together
            traces.append(random_trace(rng, name, order, n, tokens=tokens, forward=forward, **more))
            keys.append(({"sample_id": name, "order": order, "temperature": 0.0}, place))
    outputs = [key | {"text": f"answer {bad}", "prompt_text": f"ask {bad}"} for key, _ in keys]
    verdicts = [
        key | {"correct": place % 2 == 0, "reason": f"because {bad}", "grader": "g"}
        for key, place in keys
        if place is not None
    ]
    return make_run(
        traces,
        spec={"kind": "evaluate", "model": {"name": f"m{bad}"}, "max_new_tokens": n, "data": {"tasks": {}}},
        outputs=outputs,
        tokens=[{"token_id": token, "piece": f" t{token}{bad}"} for token in range(n)],
        verdicts=verdicts,
    )


@pytest.fixture(scope="session")
def study():
    return Study(made_run(), Options(resampling=Resampling(50, 0)))


@pytest.fixture(scope="session")
def evil_study():
    return Study(made_run(4, evil=True, scored=False), Options(resampling=Resampling(20, 0)))
