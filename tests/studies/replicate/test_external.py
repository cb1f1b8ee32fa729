"""External scores are stored by text: no text is scored twice, and the store replaces the evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.analysis.external import StoredScores
from orderlens.analysis.study import Study
from orderlens.metrics.external import score_texts as score_directly
from orderlens.store.reader import open_run
from orderlens.studies import external
from orderlens.studies.external import external_folder, find_evaluator, score_texts


class Letters:
    """An evaluator whose tokens are letters: p = 1/(1 + code of the letter), prompt counted in."""

    name = "letters"

    def __init__(self):
        self.scored = []

    def token_logprobs(self, pairs):
        self.scored += pairs
        return [-np.log1p([ord(letter) + len(prompt) for letter in text]) for prompt, text in pairs]


class Sink(list):
    """Progress that remembers each advance."""

    total = 0

    def __call__(self, steps=1):
        self.append(steps)

    def set_total(self, total):
        self.total = total


@pytest.fixture
def generated(replication):
    return open_run(replication.folder / "runs" / "generate")


def test_stored_scores_are_the_evaluators_to_the_last_bit(generated, tmp_path):
    stored = score_texts(generated, Letters(), tmp_path / "scores")
    rows = [row for row in generated.outputs().to_arrow().to_pylist() if row["text"]]
    prompts, texts = [row["prompt_text"] for row in rows], [row["text"] for row in rows]
    lengths = [len(text) for text in texts]
    direct, kept = (score_directly(item, prompts, texts, lengths) for item in (Letters(), stored))
    np.testing.assert_array_equal(direct.nll, kept.nll)
    np.testing.assert_array_equal(direct.n_scored, kept.n_scored)
    assert stored.name == "letters"


def test_a_second_pass_asks_for_nothing(generated, tmp_path):
    score_texts(generated, Letters(), tmp_path / "scores")
    again = Letters()
    score_texts(generated, again, tmp_path / "scores")
    assert again.scored == []


def test_each_text_is_scored_once_and_progress_counts_them(generated, tmp_path, monkeypatch):
    monkeypatch.setattr(external, "UNIT", 5)
    evaluator, sink = Letters(), Sink()
    score_texts(generated, evaluator, tmp_path / "scores", sink)
    texts = {(row["prompt_text"], row["text"]) for row in generated.outputs().to_arrow().to_pylist()}
    alone = {pair for pair in texts if pair[1]}
    assert set(evaluator.scored) == alone | {("", prompt + text) for prompt, text in alone}
    assert len(evaluator.scored) == len(set(evaluator.scored)) == sum(sink) == sink.total
    assert max(sink) == 5


class Starting(Letters):
    """The same, begun in one call and waited for in another."""

    def __init__(self):
        super().__init__()
        self.waited = []

    def start(self, pairs, tell):
        self.scored += pairs

        def wait():
            self.waited.append(len(self.scored))
            tell(len(pairs))
            return Letters().token_logprobs(pairs)

        return wait


def test_an_evaluator_that_begins_is_given_the_next_texts_meanwhile(generated, tmp_path, monkeypatch):
    monkeypatch.setattr(external, "UNIT", 2)
    evaluator, sink = Starting(), Sink()
    begun = score_texts(generated, evaluator, tmp_path / "begun", sink)
    plain = score_texts(generated, Letters(), tmp_path / "plain")
    assert sum(sink) == sink.total == len(evaluator.scored) == len(set(evaluator.scored))
    assert len(evaluator.waited) == len(sink) > 3
    for one, other in zip(*(found.token_logprobs(evaluator.scored) for found in (begun, plain)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_unknown_texts_have_no_scores():
    stored = StoredScores("letters", {})
    assert [len(row) for row in stored.token_logprobs([("a", "b")])] == [0]
    assert not stored.knows(("a", "b"))


def test_the_scores_of_a_folder_of_runs_are_found(generated, tmp_path):
    score_texts(generated, Letters(), tmp_path / "scores")
    found = Study.open(tmp_path).evaluator
    assert found is not None
    assert found.name == "letters"
    assert Study(generated).evaluator is None


def test_a_missing_evaluator_gives_a_reason():
    evaluator, why = find_evaluator("no-such-thing", None)
    assert evaluator is None
    assert "unknown evaluator 'no-such-thing'" in why


def test_missing_bundled_weights_are_told_without_a_path(monkeypatch):
    monkeypatch.setattr(external, "is_bundled", lambda name: False)
    assert find_evaluator("tiny-ar", None) == (None, "its weights are not part of this installation")


def test_evaluators_have_folders_of_their_own(tmp_path):
    assert external_folder(tmp_path, "hf:org/name@v1").name == "external-hf-org-name-v1"
    assert external_folder(tmp_path, "tiny-ar").name == "external-tiny-ar"
