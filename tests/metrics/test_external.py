"""External perplexity arithmetic, with a real little evaluator: a unigram model over characters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens.errors import ModelOutputError, UnknownNameError, UserInputError
from orderlens.metrics import external_perplexity, load_evaluator
from orderlens.metrics.external import score_texts


class Unigram:
    """p(character) = 1/2 for 'a', 1/4 for 'b', 1/4 for anything else."""

    name = "unigram"

    def token_logprobs(self, pairs):
        table = {"a": math.log(0.5)}
        return [np.array([table.get(c, math.log(0.25)) for c in text]) for _, text in pairs]


def test_summary_by_hand():
    result = external_perplexity(Unigram(), ["p", "p", "p", "p"], ["aa", "ab", "bbbb", ""], [1, 2, 2, 0])
    assert (result.n_samples, result.n_undefined, result.n_scored) == (3, 1, 8)
    ppl = sorted([2.0, math.sqrt(8), 4.0])
    assert result.median_ppl == pytest.approx(ppl[1])
    assert result.exp_mean_nll == pytest.approx(math.exp(np.mean(np.log(ppl))))
    assert result.pooled_ppl == pytest.approx(math.exp((2 * math.log(2) + math.log(8) + 4 * math.log(4)) / 8))
    assert result.retokenization_ratio == pytest.approx(8 / 5)


def test_nothing_to_score_is_undefined():
    result = external_perplexity(Unigram(), ["p"], [""], [0])
    assert math.isnan(result.median_ppl)
    assert math.isnan(result.retokenization_ratio)
    assert (result.n_samples, result.n_undefined) == (0, 1)


def test_a_broken_evaluator_is_named():
    class Broken(Unigram):
        def token_logprobs(self, pairs):
            return [np.array([np.nan])]

    with pytest.raises(ModelOutputError, match="unigram"):
        score_texts(Broken(), [""], ["a"], [1])


def test_bad_requests():
    with pytest.raises(UserInputError, match="do not match"):
        score_texts(Unigram(), ["a"], [], [])
    with pytest.raises(UnknownNameError, match="tiny-ar"):
        load_evaluator("tiny-at")
