"""``census --generate`` as a run: texts, unfinished searches, grading, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.errors import OrderLensError
from orderlens.testing import write_small

MODEL = "hmm:incoherence=0.5"
PROMPTS = [ol.Sample(f"p{i}", "the cat sat on the mat again and "[i:]) for i in range(3)]


def test_shares_of_a_prompt_sum_to_one_and_the_run_reads_again(tmp_path: Path) -> None:
    census = ol.census(MODEL, PROMPTS, span=4, generate=True, anchor="prompt", out=tmp_path / "run")
    frame = census.texts().to_pandas()
    assert frame["finished"].all()
    assert np.allclose(frame.groupby("sample_id")["share"].sum(), 1)
    assert (frame["log_q_mean"] <= frame["log_q_best"] + 1e-12).all()
    again = ol.census(MODEL, PROMPTS, span=4, generate=True, anchor="prompt", out=tmp_path / "run")
    assert again.texts().to_arrow().equals(census.texts().to_arrow())
    assert census.choices()[0] == {"policy": "random order", "n": 3, "correct": None}


def test_each_kind_of_census_names_its_own_methods() -> None:
    texts = ol.census(MODEL, PROMPTS[:1], span=3, generate=True, anchor="prompt")
    for method in (texts.spans, texts.rules):
        with pytest.raises(OrderLensError, match=r"from prompts; use texts\(\) and choices\(\)"):
            method()
    spans = ol.census(MODEL, [ol.Sample("t", "the cat ", "sat on the mat")], span=3)
    for method in (spans.texts, spans.choices):
        with pytest.raises(OrderLensError, match=r"fixed texts; use spans\(\), rules\(\) and table\(\)"):
            method()


def test_a_search_past_its_limit_is_not_finished() -> None:
    census = ol.census(MODEL, PROMPTS[:1], span=5, generate=True, anchor="prompt", max_states=3)
    (row,) = census.texts().to_arrow().to_pylist()
    assert row["finished"] is False
    assert row["text"] is None


def test_the_mean_of_no_finished_prompt_is_not_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["census", "--generate", "--model", MODEL, "--limit", "1", "--span", "4", "--max-states", "2"]
    assert main([*words, "--anchor", "prompt", "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "0 of 1 prompts finished\nnot finished" in shown
    assert "next: orderlens runs export" in shown
    with pytest.raises(OrderLensError, match="no traces; 'orderlens runs export RUN --table census_texts"):
        ol.Study.open(tmp_path / "run")
    assert main([*words, "--anchor", "prompt", "--out", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts_per_prompt"] is None


def test_texts_of_a_task_are_graded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["census", "--generate", "--task", "choice", "--model", "hmm", "--limit", "2", "--span", "3"]
    assert main([*words, "--anchor", "prompt", "--out", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_prompts"], found["n_finished"]) == (2, 2)
    by = {row["policy"]: row["correct"] for row in found["choices"]}
    assert by["worst text"] <= by["random order"] <= by["best text"]
    frame = ol.open_run(tmp_path / "run").table("census_texts").to_pandas()
    assert frame["correct"].notna().all()
    assert all(row.response.startswith(row.text) for row in frame.itertuples())


@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize("anchor", ["zero", "prompt"])
def test_the_answer_that_evaluate_decodes_left_to_right_is_among_those_of_all_orders(
    attention: str, anchor: str, tmp_path: Path
) -> None:
    """Also where a block ends early: the shorter beginning is continued to the same length."""
    write_small(tmp_path, max_positions=1024, attention=attention)
    given: dict[str, Any] = {"limit": 3, "anchor": anchor, "batch_size": 3}
    census = ol.census(str(tmp_path), [], generate=True, task="arith", span=5, allow_short=True, **given)
    run = ol.evaluate(str(tmp_path), tasks=["arith"], orders=["forced-ar"], **given)
    found = census.texts().to_pandas().groupby("sample_id")["response"].agg(set)
    for row in run.table("outputs").to_arrow().to_pylist():
        assert row["text"] in found[row["sample_id"]]


@pytest.mark.parametrize(("template", "free"), [("the [[3]]cat[[2]] sat", 3), ("the [[2]] cat", 2)])
def test_the_given_text_of_a_template_is_visible_and_not_replaced(template: str, free: int) -> None:
    """Its first hole is followed: the text of the order left to right is that of ``generate``."""
    given: dict[str, Any] = {"model": MODEL, "samples": [ol.Sample("p", "", template=template)]}
    with pytest.raises(OrderLensError, match=f"has {free} free positions, not 4; use `span` {free}"):
        ol.census(**given, span=4, generate=True)
    census = ol.census(**given, span=4, generate=True, allow_short=True)
    run = ol.generate(MODEL, given["samples"], orders=["forced-ar"])
    (decoded,) = run.outputs().to_pandas()["text"]
    frame = census.texts().to_pandas()
    assert frame["size"].tolist() == [free] * len(frame)
    assert decoded[:free] in frame["text"].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "choice"}, "provides prompts to generate from"),
        ({"task": "choice", "generate": True}, "provides the prompts; leave out the 3 given"),
        ({"max_states": 5}, "limits `generate`; add it"),
        ({"generate": True, "span": 40}, "must be from 1 to 20"),
        ({"generate": True, "orders": "max-prob"}, "`generate` follows all orders"),
        ({"generate": True, "span": 20, "block_size": 16}, "free positions, not 20"),
    ],
)
def test_what_it_cannot_do_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OrderLensError, match=message):
        ol.census(MODEL, PROMPTS, **options)


def test_a_task_has_its_own_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["census", "--generate", "--task", "choice", "--model", "hmm", "--out", str(tmp_path / "run")]
    assert main([*words, "--data", "passages"]) == 2
    assert "--data 'passages' does not apply" in capsys.readouterr().err
