"""The named tables on small runs: every table comes, and cells that are undefined say why."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.analysis import Study, table_names
from orderlens.analysis.table import table_recipe
from orderlens.errors import UnknownNameError
from orderlens.metrics.estimate import Estimate
from orderlens.store.reader import Run

FIXED_NAMES = (
    "fixed-sequence, generation, reveal-order, coherence, temperature, downstream, within-cell, quadrants, "
    "selectors, content, controls, theory"
)
EOS = 0


def undefined_cells(tables):
    cells = [cell for t in tables for row in t.rows for cell in row.values() if isinstance(cell, Estimate)]
    return [cell for cell in cells if not cell.is_defined]


def test_the_fixed_names_are_all_there(builders):
    assert set(FIXED_NAMES.split(", ")) <= set(table_names())
    with pytest.raises(UnknownNameError, match="did you mean 'quadrants'"):
        Study(None, builders.QUICK).tables(["quadrant"])


def all_tables(run, builders, without=()):
    study = Study(run, builders.QUICK)
    return {name: table_recipe(name)(study) for name in table_names() if name not in without}


@pytest.mark.parametrize(("kind", "without"), [("scored", ("theory",)), ("graded", ())])
def test_every_table_comes_from_every_kind_of_run(kind, without, request, builders):
    for tables in all_tables(request.getfixturevalue(kind), builders, without).values():
        assert tables
        assert tables[0].rows
        for one in tables:
            for row in one.rows:
                assert {*one.keys, *(column.name for column in one.columns)} == set(row)
        assert all(cell.why for cell in undefined_cells(tables))


def test_tables_suited_to_a_run(scored, graded):
    assert list(Study(scored).suited()) == ["fixed-sequence", "coherence", "order-pairs", "theory"]
    names = Study(graded).suited()
    assert {"generation", "downstream", "within-cell", "null"} <= set(names)
    assert "temperature" not in names


def test_runs_without_verdicts_get_the_table_and_the_reason(scored, builders):
    for name in ("downstream", "within-cell", "quadrants", "selectors", "controls"):
        found = builders.table(scored, name)
        assert found.rows
        assert {cell.why for cell in undefined_cells([found])} == {"not graded: the run holds no verdicts"}


def awkward_run(builders):
    """One order; all-EOS, one-token and NaN traces; constant correctness."""
    traces = [
        builders.trace("eos", "max-prob", [-0.1, -0.2], tokens=[EOS, EOS], task="t", temperature=0.0),
        builders.trace("one", "max-prob", [-0.4], task="t", temperature=0.0),
        builders.trace("nan", "max-prob", [-0.1, np.nan, -0.2], task="t", temperature=0.0),
        builders.trace("fine", "max-prob", [-0.1, -0.5, -0.2, -0.9], task="t", temperature=0.0),
    ]
    key = {"task": "t", "order": "max-prob", "temperature": 0.0, "correct": True}
    verdicts = [{"sample_id": name} | key for name in ("eos", "one", "nan", "fine")]
    return builders.make_run(traces, verdicts=verdicts)


def test_awkward_samples_never_break_a_table(builders):
    for tables in all_tables(awkward_run(builders), builders).values():
        assert tables[0].rows
        assert all(cell.why for cell in undefined_cells(tables))


def test_awkward_samples_are_counted_with_reasons(builders):
    run = awkward_run(builders)
    cell = builders.table(run, "content").cell("content_var", task="t", order="max-prob")
    assert (cell.n, cell.n_undefined) == (2, 2)
    assert cell.why == "1 with NaN or −inf in the trace, 1 without content tokens"
    within = builders.table(run, "within-cell")
    assert within.cell("rho", task="t", order="max-prob").why == "all 2 samples are correct"
    assert within.cell("n_undefined", task="t", order="max-prob") == 2
    chosen = builders.table(run, "selectors").cell("min_v", task="t", scope="all orders")
    assert chosen.why == "1 order: nothing to choose from"


def test_an_empty_run_still_gives_tables(builders):
    run = builders.make_run([builders.trace("a", "forced-ar", [])])
    assert all(all_tables(run, builders).values())


def test_several_runs_are_read_as_one(builders):
    a, b = builders.graded_run(n_items=5, seed=1), builders.graded_run(n_items=5, seed=2, prefix="j")
    both = Run([*a._sources.values(), *b._sources.values()])
    found = builders.table(both, "downstream")
    assert found.cell("accuracy", task="arith", order="random").n == 10
    assert len(Study(both, builders.QUICK).tables(["reveal-order", "generation"])) == 3
