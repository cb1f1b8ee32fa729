"""The named tables and which statistics each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from orderlens.analysis import (
    tables_controls,
    tables_downstream,
    tables_fixed,
    tables_generation,
    tables_theory,
)
from orderlens.analysis.sample_table import PARTS
from orderlens.analysis.study import Options, Study
from orderlens.analysis.table import Table
from orderlens.errors import UnknownNameError
from orderlens.registry import suggest
from orderlens.store.reader import Run

Build = Callable[[Study], list[Table]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a named table is made."""

    build: Build
    parts: tuple[str, ...]
    summary: str


TABLES: dict[str, Recipe] = {
    "fixed-sequence": Recipe(
        tables_fixed.fixed_sequence, (), "mean log q and Var per order on fixed targets (Fig. 1a)"
    ),
    "generation": Recipe(
        tables_generation.generation, ("text",), "trace and text metrics per order (Table 1)"
    ),
    "reveal-order": Recipe(
        tables_generation.reveal_order, ("shape",), "closeness to left-to-right, agreement of orders"
    ),
    "coherence": Recipe(tables_fixed.coherence, (), "dependence of log P on the order, with the noise floor"),
    "temperature": Recipe(tables_generation.temperature, ("text",), "sampling temperature sweep (Fig. S1)"),
    "downstream": Recipe(tables_downstream.downstream, (), "accuracy and Var per task and order (Table 2)"),
    "within-cell": Recipe(
        tables_downstream.within, ("jensen",), "Var of correct against incorrect samples (Tables 3, S2)"
    ),
    "quadrants": Recipe(
        tables_downstream.quadrant_tables, (), "accuracy by median splits of mean and Var (Table 4)"
    ),
    "selectors": Recipe(
        tables_downstream.selector_tables, (), "choosing an order per item by Var, mean, chance, oracle"
    ),
    "content": Recipe(
        tables_downstream.content, (), "content-token statistics per task and order (Table S1)"
    ),
    "controls": Recipe(tables_controls.control_tables, ("jensen",), "does Var add to mean and length?"),
    "theory": Recipe(tables_theory.theory, ("jensen",), "exact Jensen loss beside Var"),
    "null": Recipe(tables_controls.null, (), "the same statistics when only the mean matters"),
}


def table_names() -> list[str]:
    """Return the names of all tables."""
    return list(TABLES)


def build_tables(run: Run, names: Iterable[str] | None = None, options: Options | None = None) -> list[Table]:
    """Return the named tables of ``run``; statistics they share are computed once.

    Args:
        run: an opened run (or several, read as one).
        names: see ``table_names``; None takes every table that the run's contents can fill.
        options: intervals, temperature, evaluator, grader.
    """
    chosen = None if names is None else [_recipe(name) for name in names]
    parts = PARTS if chosen is None else sorted({part for recipe in chosen for part in recipe.parts})
    study = Study(run, options, parts)
    recipes = [TABLES[name] for name in suited_tables(study)] if chosen is None else chosen
    return [table for recipe in recipes for table in recipe.build(study)]


def suited_tables(study: Study) -> list[str]:
    """Return the tables that a run's contents can fill."""
    names = {"theory"}
    if len(study.scored):
        names |= {"fixed-sequence", "coherence"}
    if len(study.generated):
        names |= {"generation", "reveal-order", "content"}
        names |= {"temperature"} if study.generated["temperature"].nunique() > 1 else set()
    if len(study.verdicts):
        names |= {"downstream", "within-cell", "quadrants", "controls", "null"}
    return [name for name in TABLES if name in names]


def _recipe(name: str) -> Recipe:
    if name not in TABLES:
        raise UnknownNameError(f"unknown table '{name}'{suggest(name, TABLES)} (known: {', '.join(TABLES)})")
    return TABLES[name]
