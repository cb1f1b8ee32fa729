"""pass@k and majority@k against all subsets, and the table of a run with several seeds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis import Study
from orderlens.analysis.votes import ALL_ORDERS, majority_at, pass_at, vote_shares, votes_of
from orderlens.metrics.significance import wilson
from orderlens.store.reader import memory_run


def won(answers, correct, chosen):
    """The verdict of the most frequent answer of one subset; equal votes share it."""
    votes = Counter(answers[i] for i in chosen)
    best = [answer for answer, n in votes.items() if n == max(votes.values())]
    verdict = {answer: correct[answers.index(answer)] for answer in best}
    return sum(verdict.values()) / len(best)


@pytest.mark.parametrize("seed", range(12))
def test_both_are_means_over_all_subsets(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 10))
    answers = [None if a == 0 else str(a) for a in rng.integers(0, rng.integers(1, 6) + 1, n)]
    right = set(rng.choice([str(a) for a in range(1, 6)], 2).tolist())
    correct = [float(answer in right) for answer in answers]
    for k in range(1, n + 1):
        sets = list(combinations(range(n), k))
        by_hand = np.mean([won(answers, correct, chosen) for chosen in sets])
        assert majority_at(answers, correct, k) == pytest.approx(by_hand, abs=1e-12)
        any_right = np.mean([any(correct[i] for i in chosen) for chosen in sets])
        assert pass_at(n, int(sum(correct)), k) == pytest.approx(any_right, abs=1e-12)
        counts = tuple(Counter(answers).values())
        assert sum(vote_shares(counts, k)) == pytest.approx(1.0, abs=1e-12)


def test_equal_answers_with_different_verdicts_count_by_their_share():
    assert majority_at(["a", "a", "b"], [1.0, 0.0, 0.0], 3) == pytest.approx(0.5)


def test_many_texts_are_counted_exactly():
    assert majority_at(["a"] * 40 + ["b"] * 24, [1.0] * 40 + [0.0] * 24, 64) == pytest.approx(1.0)
    assert pass_at(64, 1, 32) == pytest.approx(0.5)


def test_items_with_fewer_texts_are_undefined_beyond_them():
    texts = pd.DataFrame(
        {"item_id": ["x", "x", "y"], "correct": [1.0, 0.0, 1.0], "extracted": ["1", None, "2"]}
    )
    found = votes_of(texts, [1, 2]).set_index(["item_id", "k"])
    assert found.loc[("x", 2), ["accuracy", "majority", "passed"]].tolist() == [0.5, 0.5, 1.0]
    assert np.isnan(found.loc[("y", 2), "majority"])
    assert found.loc[("y", 1), "passed"] == 1.0


def test_the_table_of_a_run_counts_seeds_and_orders(golden_studies):
    study = golden_studies["evaluate"]
    table = study.table("votes")
    frame = table.to_pandas().set_index(["texts", "k"])
    ks = {"forced-ar": [1], "max-prob": [1], "random": [1, 2], ALL_ORDERS: [1, 2, 4]}
    assert {name: frame.loc[name].index.tolist() for name in ks} == ks
    items = study.verdicts.groupby("sample_id")
    passed = np.mean([own["correct"].any() for _, own in items])
    voted = [majority_at(own["extracted"].tolist(), own["correct"].tolist(), 4) for _, own in items]
    whole = frame.loc[(ALL_ORDERS, 4)]
    assert whole["passed"] == pytest.approx(100 * passed)
    assert whole["majority"] == pytest.approx(100 * np.mean(voted))
    assert whole["accuracy"] == pytest.approx(100 * study.verdicts["correct"].mean())
    assert whole["majority_low"] < whole["majority"] < whole["majority_high"]
    assert whole["passes"] == pytest.approx(4 * study.samples["n_passes"].mean())
    alone = frame.xs(1, level="k")
    assert alone["majority"].to_numpy() == pytest.approx(alone["accuracy"].to_numpy())
    assert alone["passed"].to_numpy() == pytest.approx(alone["accuracy"].to_numpy())


def test_a_share_of_nothing_has_an_interval(builders):
    rows = [{"task": "t", "temperature": 0.0, "order": "max-prob", "sample_id": f"s{i}"} for i in range(5)]
    traces = [builders.trace(logq=[-1.0, -2.0], **row) for row in rows]
    run = builders.make_run(traces, verdicts=[row | {"correct": False, "grader": "g"} for row in rows])
    cell = builders.table(run, "votes").cell("passed", texts="max-prob", k=1)
    assert cell.value == 0
    assert cell.high == pytest.approx(wilson(0, 5).times(100).high)


def test_without_answers_there_is_no_majority(golden_studies):
    run = golden_studies["evaluate"].run
    verdicts = run.table("verdicts").to_arrow().drop_columns(["extracted"])
    study = Study(memory_run({"reveals": run.reveals().to_arrow(), "verdicts": verdicts}, run.spec))
    cell = study.table("votes").cell("majority", texts="random", k=2)
    assert not cell.is_defined
    assert cell.why == "no text has an answer to vote for"
    assert study.table("votes").cell("passed", texts="random", k=2).is_defined
