"""The small recipes of the pages about smol: how answers end, HellaSwag as texts to score."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np

from orderlens.testing import make_run, make_trace

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def answer(order: str, name: str, path: list[int], n_content: int, seed: int | None = None):
    """A generated answer: ``n_content`` tokens of text, end tokens after them, revealed along ``path``."""
    tokens = [5] * n_content + [0] * (len(path) - n_content)
    return make_trace(
        name, order, np.log(np.full(len(path), 0.5)), path=path, tokens=tokens, temperature=0.0, seed=seed
    )


def test_sealed_answers_are_counted_by_order(tmp_path, capsys):
    left = list(range(12))
    sealed = [11, 10, 9, 8, 7, 6, 5, 4, 0, 1, 2, 3]
    three = [0, 1, 11, 10, 9, 2, 3, 5, 4, 7, 6, 8]
    run = make_run(
        [
            answer("forced-ar", "a", left, 4),
            answer("forced-ar", "b", left, 12),
            answer("max-prob", "a", sealed, 4),
            answer("max-prob", "b", three, 4),
            answer("random", "a", [11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0, seed=1),
        ]
    )
    run.save(tmp_path / "run")
    runpy.run_path(str(RECIPES / "answer_endings.py"))["main"](tmp_path / "run")
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "n 2, tokens: median 8, ended 50.0 %, empty 0.0 %" in lines["forced-ar"]
    assert lines["forced-ar"].endswith("sealed by 3 0.0 %, sealed by 8 0.0 %")
    assert "end token revealed first 50.0 %, sealed by 3 100.0 %, sealed by 8 50.0 %" in lines["max-prob"]
    assert "tokens: median 0" in lines["random:1"]
    assert "empty 100.0 %" in lines["random:1"]
    assert "sealed by 3 0.0 %" in lines["random:1"]


def test_endings_are_written_and_read_back_by_order(tmp_path, capsys):
    recipe = runpy.run_path(str(RECIPES / "hellaswag_endings.py"))
    docs = [
        {
            "activity_label": "Cooking",
            "ctx_a": "A man cuts an onion.",
            "ctx_b": "he",
            "endings": [f"does [step] number {place}." + " Then more." * place for place in range(4)],
            "label": label,
        }
        for label in (3, 3)
    ]
    source, rows = tmp_path / "docs.jsonl", tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    recipe["write"](source, rows, 2)
    written = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in written] == [f"{item}/{place}" for item in range(2) for place in range(4)]
    assert written[0]["prompt"] == "Cooking: A man cuts an onion. He"
    assert written[0]["target"] == " does number 0."
    # Ending 0 has the highest mean; ending 3 is long, so that it is the best per byte.
    values = {0: [-1.0] * 4, 1: [-2.0] * 4, 2: [-2.0] * 4, 3: [-1.5] * 4}
    traces = [
        make_trace(row["id"], "forced-ar", np.array(values[int(row["id"][-1])]), path=[0, 1, 2, 3])
        for row in written
    ]
    values = {0: [-1.0] * 4, 1: [-2.0] * 4, 2: [-2.0] * 4, 3: [-9.0] * 4}
    traces += [
        make_trace(row["id"], "reverse-ar", np.array(values[int(row["id"][-1])]), path=[3, 2, 1, 0])
        for row in written
    ]
    make_run(traces).save(tmp_path / "run")
    recipe["read"](tmp_path / "run", source)
    out = capsys.readouterr().out
    assert "per byte   100.0 %" in out
    assert "per token    0.0 %" in out
    assert "(n = 2)" in out
    assert "forced-ar and reverse-ar choose the same ending (per byte): 0.0 %" in out
