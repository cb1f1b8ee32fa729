"""Numbers that cannot be what a metric asks for are refused by name, with what to pass instead."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.errors import ModelOutputError, UserInputError
from orderlens.metrics import distinct_n, local_arness, path_stats
from orderlens.metrics.external import score_texts
from orderlens.metrics.path import gini


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: path_stats([-0.5, 0.25]), r"log q must be ≤ 0, got 0\.25; pass natural logs"),
        (lambda: path_stats([[-0.5]]), r"must be one trace of numbers, got shape \(1, 1\)"),
        (lambda: gini([0.5, -0.25]), r"self-information −log q must be ≥ 0, got -0\.25"),
        (lambda: gini([[0.5]]), r"must be one block of numbers, got shape \(1, 1\)"),
        (lambda: local_arness([0, 1, 2], k=0), "AR-ness needs k ≥ 1, got 0"),
        (lambda: distinct_n([1, 2], 0), "distinct-n needs n ≥ 1, got 0"),
    ],
)
def test_what_is_no_such_number_is_refused(call, said):
    with pytest.raises(UserInputError, match=said):
        call()


def test_rounding_above_zero_is_no_error():
    assert path_stats([1e-9, -1.0]).n == 2


class Broken:
    name = "broken"

    def token_logprobs(self, pairs):
        return [np.array([-1.0, value]) for value in (-2.0, np.nan)[: len(pairs)]]


def test_an_evaluator_without_a_number_is_named_with_the_text():
    with pytest.raises(ModelOutputError, match="broken returned a non-finite log-probability for text 2"):
        score_texts(Broken(), ["", "", ""], ["a", "", "b"], [1, 0, 1])
