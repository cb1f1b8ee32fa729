"""Tables: cells, columns and rows; recipes that build them, by name, open to plug-ins."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.traces import in_sets
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
        """Return ours − printed; NaN unless both are numbers."""
        if isinstance(self.value, str) or not isinstance(ours, Estimate):
            return math.nan
        return ours.value - self.value


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """A named table.

    Attributes:
        name: its name on the command line.
        title: one line above the table.
        keys: names of the columns that identify a row.
        columns: the other columns.
        rows: one mapping per row, keys and cells by column name.
        notes: sentences to print below: definitions, cautions, remarks.
        printed: the paper's values by (row number, column name), if requested.
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
        """Return the HTML that a notebook shows."""
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
        """Return the numbers without empty columns, for display."""
        return self.to_pandas().dropna(axis="columns", how="all")

    def to_pandas(self) -> pd.DataFrame:
        """Return the numbers as a frame; columns with intervals are followed by ``_low`` and ``_high``.

        Columns without any defined cell are included.
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
    """Merge the tables of several models into one of each kind, with the model as the first key.

    A model without the data of a table may have fewer keys; its cells of the others are ``–``.

    Args:
        tables: the same kinds of table by the model's label.
    """
    names = dict.fromkeys(table.name for found in tables.values() for table in found)
    out = []
    for name in names:
        own = {model: table for model, found in tables.items() for table in found if table.name == name}
        fullest = max(own.values(), key=lambda table: (len(table.keys), len(table.rows)))
        columns = {column.name: column for table in own.values() for column in table.columns}
        blank: dict[str, Cell] = dict.fromkeys(fullest.keys, "–") | dict.fromkeys(columns)
        rows = tuple({"model": model, **blank, **row} for model, table in own.items() for row in table.rows)
        keys = ("model", *fullest.keys)
        out.append(Table(name, fullest.title, keys, tuple(columns.values()), rows, _joined_notes(own)))
    return out


def _joined_notes(tables: Mapping[str, Table]) -> tuple[str, ...]:
    """Return notes shared by all tables once, and the others with the model's name."""
    common = set.intersection(*(set(table.notes) for table in tables.values()))
    first = next(iter(tables.values()))
    shared = [note for note in first.notes if note in common]
    own = [
        f"{model}: {note}" for model, table in tables.items() for note in table.notes if note not in common
    ]
    return (*shared, *own)


def cells_of(frame: pd.DataFrame, value: str) -> list[Estimate]:
    """Return a frame's column (and ``…_low``, ``…_high``, ``…_why``) as cells, with the row's ``n``.

    The row's ``why`` explains values that are undefined, the column's all others, and these if the row has
    none.
    """
    out = []
    for row in frame.to_dict("records"):
        number = _float(row.get(value))
        why = row.get(f"{value}_why")
        if math.isnan(number):
            why = row.get("why") or why or "undefined"
        out.append(
            Estimate(
                number,
                _float(row.get(f"{value}_low")),
                _float(row.get(f"{value}_high")),
                _count(row),
                int(row.get("n_undefined") or 0),
                why if isinstance(why, str) else None,
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


_SEEDED = re.compile(r"^random:\d+$")


def with_paper_values(table: Table) -> Table:
    """Return the table with the paper's value in every cell that the paper prints, and with our remarks.

    The paper has one seed of random; its values appear next to every seed.
    """
    values = paper.printed(table.name)
    printed: dict[tuple[int, str], Printed] = {}
    for place, row in enumerate(table.rows):
        key = tuple(_SEEDED.sub("random", str(row[name])) for name in table.keys if name != "model")
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
    """Show the table only on request."""
    return False


def always(_study: Study) -> bool:
    """Show the table for every run."""
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


NO_STATES = "no states were kept: score, generate or evaluate with --states"
NO_CENSUS = "no census: 'orderlens census' evaluates all states of a span"


def has_states(study: Study) -> bool:
    """Whether states of the masked positions were kept."""
    return "states" in study.run.tables


def has_census(study: Study) -> bool:
    """Whether all orders of spans are known."""
    return "census" in study.run.tables


def has_couplings(study: Study) -> bool:
    """Whether sets were re-scored one token at a time."""
    return "couplings" in study.run.tables


def has_sets(study: Study) -> bool:
    """Whether a policy committed several tokens in one pass while scoring."""
    return bool(in_sets(study.scored).any())


def has_temperatures(study: Study) -> bool:
    """Whether text was generated at several temperatures."""
    return int(study.generated["temperature"].nunique()) > 1


@dataclass(frozen=True, slots=True)
class TableRecipe:
    """How a named table is built.

    Attributes:
        build: the function.
        summary: one line for lists.
        needs: groups of per-trace statistics beyond the path (see ``metrics.trace_table.GROUPS``).
        traces: which runs of a replication it reads: score, generate or sweep; None reads all.
        suits: whether a study can fill it; then it is shown by default.
        across_models: it compares models itself; otherwise it is built once per model.
    """

    build: Build
    summary: str
    needs: tuple[str, ...] = tuple(GROUPS)
    traces: str | None = None
    suits: Suits = never
    across_models: bool = False

    def __call__(self, study: Study) -> list[Table]:
        """Return the table and its companion tables."""
        with study.needing(self.needs):
            found = self.build(study)
        tables = found if isinstance(found, list | tuple) else [found]
        if not all(isinstance(item, Table) for item in tables):
            kind = type(found).__name__
            raise PluginError(
                f"table function '{_name(self.build)}' returned {kind}, not a Table or a list of Tables"
            )
        return list(tables)


def table(
    summary: str,
    *,
    needs: tuple[str, ...] = (),
    traces: str | None = None,
    suits: Suits = always,
    across_models: bool = False,
) -> Callable[[Build], TableRecipe]:
    """Turn a function into a recipe; see ``TableRecipe`` for the arguments."""
    return lambda build: TableRecipe(build, summary, needs, traces, suits, across_models)


TABLES: Registry[TableRecipe | Build] = Registry(
    "table",
    {
        "fixed-sequence": "orderlens.analysis.tables_fixed:fixed_sequence",
        "generation": "orderlens.analysis.tables_generation:generation",
        "reveal-order": "orderlens.analysis.tables_generation:reveal_order",
        "coherence": "orderlens.analysis.coherence:coherence",
        "order-pairs": "orderlens.analysis.tables_pairs:order_pairs",
        "policies": "orderlens.analysis.tables_policies:policies",
        "couplings": "orderlens.analysis.tables_couplings:couplings",
        "locality": "orderlens.analysis.tables_assumptions:locality",
        "census": "orderlens.analysis.tables_census:census",
        "frontier": "orderlens.analysis.frontier:frontier",
        "speed": "orderlens.analysis.speed:speed",
        "temperature": "orderlens.analysis.tables_generation:temperature",
        "downstream": "orderlens.analysis.tables_downstream:downstream",
        "within-cell": "orderlens.analysis.tables_downstream:within",
        "quadrants": "orderlens.analysis.tables_downstream:quadrant_tables",
        "selectors": "orderlens.analysis.tables_downstream:selector_tables",
        "votes": "orderlens.analysis.votes:votes",
        "content": "orderlens.analysis.tables_downstream:content",
        "controls": "orderlens.analysis.tables_controls:control_tables",
        "theory": "orderlens.analysis.tables_theory:theory",
        "tolerance": "orderlens.analysis.tables_assumptions:tolerance",
        "losses": "orderlens.analysis.tables_fixed:losses",
        "hits": "orderlens.analysis.tables_assumptions:hits",
        "null": "orderlens.analysis.tables_controls:null",
    },
    entry_point_group="orderlens.tables",
    check=lambda found: None if callable(found) else "is not a function of a study",
)


def table_names() -> list[str]:
    """Return the names of all tables, plug-ins last."""
    return TABLES.names()


def table_recipe(name: str) -> TableRecipe:
    """Return the recipe of table ``name``; a plain function gets all statistics, only on request."""
    found = TABLES.get(name)
    return found if isinstance(found, TableRecipe) else TableRecipe(found, _first_line(found))


def table_recipes() -> dict[str, TableRecipe]:
    """Return all tables by name without broken plug-ins; requesting one by name reports its error."""
    whole = [name for name, found in TABLES.entries() if not isinstance(found, PluginError)]
    return {name: table_recipe(name) for name in whole}


def _name(build: Build) -> str:
    return getattr(build, "__name__", type(build).__name__)


def _first_line(build: Build) -> str:
    return (build.__doc__ or "a plug-in's table").strip().splitlines()[0].rstrip(".")
