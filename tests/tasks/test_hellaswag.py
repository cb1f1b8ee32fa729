from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.tasks import multiple_choice as hellaswag

DOC = {
    "activity_label": "Roof shingle removal",
    "ctx_a": "A man is sitting on a roof.",
    "ctx_b": "he",
    "endings": [
        "is using wrap.",
        "[substeps] rips  tiles off.",
        "holds a cube.",
        "starts pulling up roofing.",
    ],
    "label": 3,
}
PIECES = ["[title]", " [title]", "[step]", "[", "]", " ", "  ", "word", ".", "\n", "[a b]"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_cleaning_equals_lm_eval(text: str) -> None:
    theirs = pytest.importorskip("lm_eval.tasks.hellaswag.utils")
    assert hellaswag.clean(text) == theirs.preprocess(text)


def test_prompt_shows_scene_and_endings() -> None:
    prompt = hellaswag.hellaswag_prompt(DOC)
    assert "Roof shingle removal: A man is sitting on a roof. He" in prompt
    assert "B.  rips tiles off." in prompt
    assert "one of ABCD" in prompt


def test_normalisations_choose_differently() -> None:
    values = [[-9.0], [-1.0] * 14, [-2.0, -2.0], [-1.5] * 4]  # token: 1; byte: 2 (−4/13 vs −6/26): sum: 2
    chosen = {kind: hellaswag.grade_scores(DOC, values, kind).extracted for kind in hellaswag.NORMALISATIONS}
    assert chosen == {"token": "B", "byte": "D", "none": "C"}
    text = hellaswag.ending_prompt(DOC, "P", "because ")
    assert text.startswith("Pbecause\n\nRoof shingle removal: A man")


def test_likelihood_verdicts_name_the_rule() -> None:
    verdict = hellaswag.grade_scores(DOC, [[-5], [-4], [-3], [-1]], "none")
    assert verdict.correct
    assert verdict.grader == "likelihood-none"
    assert "-1.0000" in verdict.reason


def test_unusable_scores_and_documents() -> None:
    empty = hellaswag.grade_scores(DOC, [[], [-1], [-1], [-1]])
    infinite = hellaswag.grade_scores(DOC, [[-math.inf], [-1], [-1], [-1]])
    assert not empty.correct
    assert "finite" in infinite.reason
    assert "no usable label" in hellaswag.grade_scores({"endings": []}, []).reason
