"""The two readings of content: without EOS, as in the paper, and without special tokens too."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.analysis import paper
from orderlens.analysis.study import Options, Study
from orderlens.testing import make_run, make_trace
from orderlens.testing.traces import EOS_ID, SPECIAL_ID


@pytest.fixture
def run():
    """Five reveals; the second is special, the last ends the text."""
    tokens = [5, SPECIAL_ID, 6, 7, EOS_ID]
    trace = make_trace("a", "max-prob", [-1.0, -9.0, -2.0, -3.0, -0.5], temperature=0.0, tokens=tokens)
    return make_run([trace])


@pytest.mark.parametrize(("content", "kept"), [("eos", [0, 1, 2, 3]), ("special", [0, 2, 3])])
def test_tables_follow_the_chosen_reading(run, content, kept):
    study = Study(run, Options(content=content))
    log_q = np.array([-1.0, -9.0, -2.0, -3.0, -0.5])[kept]
    row = study.samples.iloc[0]
    assert (row["n_content"], row["content_mean"], row["content_var"]) == (
        len(kept), pytest.approx(log_q.mean()), pytest.approx(log_q.var())
    )  # fmt: skip
    table = study.table("content")
    assert table.cell("content_mean", order="max-prob", task="(none)").value == pytest.approx(log_q.mean())
    assert study.options.content_note in table.notes


def test_the_default_is_the_papers_and_samples_keep_ours(run):
    assert Options().content == "eos"
    assert run.samples().to_pandas()["n_content"].tolist() == [3]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("generate", "generation"),
        ("generate", "reveal-order"),
        ("sweep", "temperature"),
        *(("evaluate", name) for name in ("downstream", "selectors", "within-cell", "quadrants", "content")),
    ],
)
def test_tables_next_to_the_papers_numbers_say_what_content_is(kind, name, golden_studies):
    study = golden_studies[kind]
    assert paper.printed(name)
    assert study.options.content_note in study.table(name).notes
