"""What a table is and how it is made: cells, columns, rows; recipes by name, open to plug-ins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from orderlens.analysis import paper
from orderlens.common.plaintext import printable
from orderlens.common.templating import fill
from orderlens.errors import PluginError
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.trace_table import GROUPS
from orderlens.registry import Registry

if TYPE_CHECKING:
    from orderlens.analysis.study import Study

Cell: TypeAlias = Estimate | str | int | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name in files, its heading in print, and how many decimals are printed."""

    name: str
    heading: str
    digits: int = 3


@dataclass(frozen=True, slots=True)
class Printed:
    """What the paper prints in a cell: a number, or a text such as ``<1e-4``."""

    value: float | str

    def difference(self, ours: Cell) -> float:
        """Return ours − printed, NaN when one of them is no number."""
        if isinstance(self.value, str) or not isinstance(ours, Estimate):
            return math.nan
        return ours.value - self.value


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """A named table.

    Attributes:
        name: its name on the command line.
        title: one line for people.
        keys: names of the columns that identify a row.
        columns: the other columns.
        rows: one mapping per row, keys and cells by column name.
        notes: sentences to print below: definitions, cautions, remarks.
        printed: the paper's values by (row number, column name), when asked for.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Cell], ...]
    notes: tuple[str, ...] = ()
    printed: Mapping[tuple[int, str], Printed] = field(default_factory=dict)

    def __repr__(self) -> str:
        numbers = self._filled().to_string(index=False, float_format="{:.4g}".format, max_colwidth=40)
        return printable("\n".join([f"{self.name}: {self.title}", numbers, *self.notes]))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        numbers = self._filled().to_html(index=False, float_format="{:.4g}".format, border=0, escape=True)
        return fill("table.html.j2", title=self.title, numbers=printable(numbers), notes=self.notes)

    def with_notes(self, notes: Iterable[str]) -> Table:
        """Return the table with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def cell(self, column: str, **keys: Any) -> Cell:
        """Return one cell by its row keys; KeyError when there is no such row."""
        for row in self.rows:
            if all(row[name] == value for name, value in keys.items()):
                return row[column]
        raise KeyError(f"no row {keys} in table {self.name}")

    def _filled(self) -> pd.DataFrame:
        """Return the numbers without the columns that hold none, for a look at them."""
        return self.to_pandas().dropna(axis="columns", how="all")

    def to_pandas(self) -> pd.DataFrame:
        """Return the numbers as a frame; columns with intervals are followed by ``_low`` and ``_high``.

        Every column is there, also where no cell of it is defined.
        """
        out: list[dict[str, Any]] = []
        for row in self.rows:
            plain: dict[str, Any] = {key: row[key] for key in self.keys}
            for column in self.columns:
                cell = row.get(column.name)
                if isinstance(cell, Estimate):
                    plain[column.name] = cell.value
                    plain[f"{column.name}_low"], plain[f"{column.name}_high"] = cell.low, cell.high
                else:
                    plain[column.name] = cell
            out.append(plain)
        names = [*self.keys, *(column.name for column in self.columns)]
        frame = pd.DataFrame(out) if out else pd.DataFrame(columns=names)
        bounds = [name for name in frame.columns if name not in names]
        return frame.drop(columns=[name for name in bounds if frame[name].isna().all()])


def by_model(tables: Mapping[str, Sequence[Table]]) -> list[Table]:
    """Return the tables of several models as one each, with the model in front of every row.

    Args:
        tables: the same kinds of table by the model's label.
    """
    names = dict.fromkeys(table.name for found in tables.values() for table in found)
    out = []
    for name in names:
        own = {model: table for model, found in tables.items() for table in found if table.name == name}
        first = next(iter(own.values()))
        columns = {column.name: column for table in own.values() for column in table.columns}
        blank: dict[str, Cell] = dict.fromkeys(columns)
        rows = tuple({"model": model, **blank, **row} for model, table in own.items() for row in table.rows)
        keys = ("model", *first.keys)
        out.append(Table(name, first.title, keys, tuple(columns.values()), rows, _joined_notes(own)))
    return out


def _joined_notes(tables: Mapping[str, Table]) -> tuple[str, ...]:
    """Return what all tables say once, and what only some say with the model in front."""
    common = set.intersection(*(set(table.notes) for table in tables.values()))
    first = next(iter(tables.values()))
    shared = [note for note in first.notes if note in common]
    own = [
        f"{model}: {note}" for model, table in tables.items() for note in table.notes if note not in common
    ]
    return (*shared, *own)


def cells_of(frame: pd.DataFrame, value: str) -> list[Estimate]:
    """Return a frame's column (and ``…_low``, ``…_high``) as cells, with the row's ``n`` and ``why``."""
    out = []
    for row in frame.to_dict("records"):
        number = _float(row.get(value))
        why = row.get("why")
        out.append(
            Estimate(
                number,
                _float(row.get(f"{value}_low")),
                _float(row.get(f"{value}_high")),
                _count(row),
                int(row.get("n_undefined") or 0),
                (str(why) if why else "undefined") if math.isnan(number) else None,
            )
        )
    return out


def rows_of(
    frame: pd.DataFrame, keys: Sequence[str], columns: Sequence[Column], counts: Sequence[str] = ()
) -> tuple[dict[str, Cell], ...]:
    """Return the rows of a result frame: keys as text, ``counts`` as whole numbers, the rest as estimates."""
    out: list[dict[str, Cell]] = [{key: str(row[key]) for key in keys} for row in frame.to_dict("records")]
    for column in columns:
        if column.name in counts:
            values: list[Cell] = [int(value) for value in frame[column.name]]
        else:
            values = list(cells_of(frame, column.name))
        for row, value in zip(out, values, strict=True):
            row[column.name] = value
    return tuple(out)


def _count(row: Mapping[Any, Any]) -> int:
    if "n_correct" in row:
        return int(row["n_correct"]) + int(row["n_incorrect"])
    value = row.get("n", row.get("n_items", 0))
    return 0 if value is None or value != value else int(value)


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def beside_paper(table: Table) -> Table:
    """Return the table with the paper's value in every cell that the paper prints, and with our remarks."""
    values = paper.printed(table.name)
    printed: dict[tuple[int, str], Printed] = {}
    for place, row in enumerate(table.rows):
        key = tuple(str(row[name]) for name in table.keys if name != "model")
        for column in table.columns:
            if (*key, column.name) in values:
                printed[place, column.name] = Printed(values[(*key, column.name)])
    notes = tuple(f"Paper: {remark}" for remark in paper.remarks(table.name))
    if values and not printed:
        notes = (*notes, "Paper: it prints no cell of this table for these tasks and orders.")
    return replace(table, printed=printed, notes=(*table.notes, *notes))


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
        "frontier": "orderlens.analysis.frontier:frontier",
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
