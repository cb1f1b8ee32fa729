"""The named tables: a registry of functions from a study to a table, open to plug-ins.

A table is any function that takes a ``Study`` and returns a ``Table`` (or several). Built-in ones say with
``@table`` what they need; for a plug-in a plain function under the entry-point group ``orderlens.tables`` is
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orderlens.analysis.table import Table
from orderlens.errors import PluginError
from orderlens.metrics.trace_table import GROUPS
from orderlens.registry import Registry

if TYPE_CHECKING:
    from orderlens.analysis.study import Study

Build = Callable[["Study"], "list[Table] | Table"]
Suits = Callable[["Study"], bool]


def never(_study: Study) -> bool:
    """Only on request."""
    return False


def always(_study: Study) -> bool:
    """Any run can fill it."""
    return True


def has_scored(study: Study) -> bool:
    """Whether fixed targets were scored."""
    return len(study.scored) > 0


def has_generated(study: Study) -> bool:
    """Whether text was generated."""
    return len(study.generated) > 0


def has_verdicts(study: Study) -> bool:
    """Whether texts were graded."""
    return len(study.verdicts) > 0


@dataclass(frozen=True, slots=True)
class TableRecipe:
    """How a named table is made.

    Attributes:
        build: the function.
        summary: one line for lists.
        needs: groups of per-trace statistics beyond the path (see ``metrics.trace_table.GROUPS``).
        traces: which runs of a replication it reads: score, generate or sweep; None reads all.
        suits: whether a study can fill it, so that it is shown without being asked for.
        across_models: it tells models apart itself; otherwise it is built once per model.
    """

    build: Build
    summary: str
    needs: tuple[str, ...] = tuple(GROUPS)
    traces: str | None = None
    suits: Suits = never
    across_models: bool = False

    def __call__(self, study: Study) -> list[Table]:
        """Return the table and those that belong to it."""
        with study.needing(self.needs):
            found = self.build(study)
        tables = found if isinstance(found, list | tuple) else [found]
        if not all(isinstance(item, Table) for item in tables):
            kind = type(found).__name__
            raise PluginError(f"table function '{_name(self.build)}' returned {kind}, not a Table or several")
        return list(tables)


def table(
    summary: str,
    *,
    needs: tuple[str, ...] = (),
    traces: str | None = None,
    suits: Suits = always,
    across_models: bool = False,
) -> Callable[[Build], TableRecipe]:
    """Make a recipe of a function; see ``TableRecipe`` for the arguments."""
    return lambda build: TableRecipe(build, summary, needs, traces, suits, across_models)


TABLES: Registry[TableRecipe | Build] = Registry(
    "table",
    {
        "fixed-sequence": "orderlens.analysis.tables_fixed:fixed_sequence",
        "generation": "orderlens.analysis.tables_generation:generation",
        "reveal-order": "orderlens.analysis.tables_generation:reveal_order",
        "coherence": "orderlens.analysis.tables_fixed:coherence",
        "order-pairs": "orderlens.analysis.tables_pairs:order_pairs",
        "policies": "orderlens.analysis.tables_policies:policies",
        "couplings": "orderlens.analysis.tables_couplings:couplings",
        "frontier": "orderlens.analysis.tables_frontier:frontier",
        "temperature": "orderlens.analysis.tables_generation:temperature",
        "downstream": "orderlens.analysis.tables_downstream:downstream",
        "within-cell": "orderlens.analysis.tables_downstream:within",
        "quadrants": "orderlens.analysis.tables_downstream:quadrant_tables",
        "selectors": "orderlens.analysis.tables_downstream:selector_tables",
        "content": "orderlens.analysis.tables_downstream:content",
        "controls": "orderlens.analysis.tables_controls:control_tables",
        "theory": "orderlens.analysis.tables_theory:theory",
        "null": "orderlens.analysis.tables_controls:null",
    },
    entry_point_group="orderlens.tables",
    check=lambda found: None if callable(found) else "is no function of a study",
)


def table_names() -> list[str]:
    """Return the names of all tables, plug-ins last."""
    return TABLES.names()


def table_recipe(name: str) -> TableRecipe:
    """Return how the table ``name`` is made; a plain function gets every statistic and is never implied."""
    found = TABLES.get(name)
    return found if isinstance(found, TableRecipe) else TableRecipe(found, _first_line(found))


def table_recipes() -> dict[str, TableRecipe]:
    """Return all tables by name; a broken plug-in is left out (asking for it by name says what is wrong)."""
    whole = [name for name, found in TABLES.entries() if not isinstance(found, PluginError)]
    return {name: table_recipe(name) for name in whole}


def _name(build: Build) -> str:
    return getattr(build, "__name__", type(build).__name__)


def _first_line(build: Build) -> str:
    return (build.__doc__ or "a plug-in's table").strip().splitlines()[0].rstrip(".")
