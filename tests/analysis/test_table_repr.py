"""What a table, a sample and loaded data look like at a prompt and in a notebook."""

from __future__ import annotations

from dataclasses import replace

import orderlens as ol
from orderlens.analysis.table import Column, Table
from orderlens.common.plaintext import UNSAFE
from orderlens.metrics.estimate import Estimate

HOSTILE = "<script>x</script>\x1b[31m\u202e"


def table() -> Table:
    rows = (
        {"order": HOSTILE, "mean": Estimate(-0.51234567, -0.6, -0.4, 7)},
        {"order": "max-prob", "mean": None},
    )
    return Table(
        "own", f"Means {HOSTILE}", ("order",), (Column("mean", "mean log q"),), rows, ("About <it>.",)
    )


def test_a_table_shows_its_numbers_and_notes() -> None:
    text = repr(table())
    for words in ("own: Means", "mean_low", "-0.5123", "max-prob", "About <it>."):
        assert words in text
    assert not UNSAFE.search(text)


def test_in_a_notebook_nothing_of_it_is_markup() -> None:
    page = table()._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "About &lt;it&gt;." in page
    assert "-0.5123" in page
    assert not UNSAFE.search(page)


def test_samples_are_cut_where_they_are_long() -> None:
    short = ol.Sample("a", "the sea", [1, 2])
    assert repr(short) == "Sample(id='a', prompt='the sea', target=[1, 2])"
    assert len(repr(ol.Sample("a", "x" * 1000, list(range(1000))))) < 120
    assert repr(ol.load_samples("passages", "hmm", limit=2)) == "LoadedData(passages, 2 of 2 rows used)"


def test_a_frame_keeps_columns_in_which_nothing_is_defined():
    cells = {"order": "max-prob", "gap": Estimate.undefined("no verdicts"), "mean": Estimate(1.0, 0.5, 1.5)}
    made = Table("t", "title", ("order",), (Column("gap", "gap"), Column("mean", "mean")), (cells,))
    assert list(made.to_pandas()) == ["order", "gap", "mean", "mean_low", "mean_high"]
    assert "gap" not in repr(made)
    assert list(replace(made, rows=()).to_pandas()) == ["order", "gap", "mean"]
