"""Scores of outside evaluators that a run holds: each evaluator's own, found by prompt and text."""

from __future__ import annotations

import pytest

from orderlens.analysis.external import StoredScores, pair_key, stored_evaluators

PAIRS = [("ask", "tell"), ("as", "ktell"), ("", "tell")]


@pytest.fixture
def run(builders):
    rows = [
        {"evaluator": name, "text_key": pair_key(pair), "logprobs": [-level, -level / 2]}
        for name, level in (("zeta", 1.0), ("eta", 3.0), ("alpha", 2.0))
        for pair in PAIRS[: 1 if name == "eta" else 2]
    ]
    return builders.make_run([builders.trace("a", "max-prob", [-1.0], temperature=0.0)], external=rows)


def test_names_are_sorted_and_a_run_without_scores_has_none(run, builders):
    assert stored_evaluators(run) == ["alpha", "eta", "zeta"]
    bare = builders.make_run([builders.trace("a", "max-prob", [-1.0])])
    assert stored_evaluators(bare) == []
    assert not StoredScores.of(bare, "eta").knows(PAIRS[0])


@pytest.mark.parametrize(("name", "level", "known"), [("zeta", 1.0, 2), ("eta", 3.0, 1), ("nobody", 0.0, 0)])
def test_each_evaluator_knows_its_own_texts(run, name, level, known):
    scores = StoredScores.of(run, name)
    assert [scores.knows(pair) for pair in PAIRS] == [place < known for place in range(3)]
    found = scores.token_logprobs(PAIRS)
    assert [values.tolist() for values in found] == [[-level, -level / 2]] * known + [[]] * (3 - known)


def test_where_a_prompt_ends_matters():
    assert len({pair_key(pair) for pair in PAIRS}) == 3
    assert pair_key(("a", "\ud800")), "text that no file could hold has a key too"
