"""What cannot be decoded, replicated or graded again is refused in one line before any model runs."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.errors import OrderLensError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.runs.spec import RunSpec

TEXTS = [ol.Sample("a", [1, 2], [3, 4])]


class Untouched(HiddenMarkovModel):
    """Fails the test when it is decoded."""

    def open_session(self):
        pytest.fail("the model was asked")


def generate(**options):
    return ol.generate(Untouched(), TEXTS, ["max-prob"], **({"max_new_tokens": 4} | options))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: generate(temperature=[]), r"temperatures \[\] must be non-empty and distinct"),
        (lambda: generate(temperature=[1.0, 1]), r"temperatures \[1.0, 1.0\] must be non-empty and distinct"),
        (lambda: generate(temperature="hot"), "temperature 'hot' must be a number"),
        (lambda: generate(batch_size=0), "batch_size=0 must be at least 1"),
        (lambda: generate(max_new_tokens=2.5), "max_new_tokens=2.5 must be a whole number"),
        (lambda: ol.score(Untouched(), [3], ["random"]), "item 0 is int, not a Sample.*token ids go into"),
        (
            lambda: ol.score(Untouched(), [ol.Sample("\ud800", [1], [2])], ["random"]),
            "a sample has the id .* which is not text",
        ),
        (lambda: ol.score(Untouched(), TEXTS, [f"random:{2**63}"]), "the seed must have at most 18 digits"),
        (
            lambda: RunSpec.from_json({"kind": "import"}),
            "kind 'import' has no .* it was not decoded",
        ),
        (lambda: ol.evaluate("hmm", 7, ["random"]), "tasks=7 must be a list"),
        (lambda: ol.evaluate("hmm", "arith,arith", ["random"]), "must name at least one task, each once"),
    ],
)
def test_it_is_refused_in_one_line(call, said):
    with pytest.raises(OrderLensError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
