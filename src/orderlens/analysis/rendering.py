"""Tables as text, CSV, LaTeX, Markdown or JSON. An undefined cell gives its reason in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from orderlens.analysis.table import Cell, Column, Printed, Table
from orderlens.common.plaintext import WIDTH, lay_out
from orderlens.common.templating import fill
from orderlens.metrics.estimate import Estimate
from orderlens.registry import refuse_unknown


def render(tables: Sequence[Table], form: str, width: int | None = WIDTH) -> str:
    """Return the tables in one of ``FORMATS``.

    Args:
        tables: what to show.
        form: the format.
        width: maximum number of characters per line of ``text`` (None: no limit). A wider table continues
            below with its keys repeated; notes are wrapped; a single column wider than that is not split.
    """
    refuse_unknown("format", form, FORMATS)
    if form == "json":
        content = {"tables": [as_json(table) for table in tables]}
        return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    if form == "text":
        return "\n".join(_text(table, width) for table in tables)
    return "\n".join(_WRITERS[form](table) for table in tables)


def as_json(table: Table) -> dict[str, Any]:
    """Return a table as plain dictionaries: numbers, intervals, counts, reasons, printed values."""
    rows = []
    for place, row in enumerate(table.rows):
        cells = {
            column.name: _json_cell(row[column.name], _printed(table, place, column))
            for column in table.columns
        }
        rows.append({**{key: row[key] for key in table.keys}, **cells})
    return {
        "table": table.name,
        "title": table.title,
        "keys": list(table.keys),
        "rows": rows,
        "notes": list(table.notes),
    }


def _json_cell(cell: Cell, printed: Printed | None) -> Any:
    if not isinstance(cell, Estimate):
        return cell if printed is None else {"value": cell, "paper": printed.value}
    out: dict[str, Any] = {name: _or_none(getattr(cell, name)) for name in ("value", "low", "high")}
    out |= {"n": cell.n, "n_undefined": cell.n_undefined, "why": cell.why}
    if printed is not None:
        out |= {"paper": printed.value, "difference": _or_none(printed.difference(cell))}
    return out


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def cell_text(cell: Cell, digits: int = 3) -> str:
    """Return a cell as text: ``0.392 [0.371, 0.414]``, ``undefined: why``, with counts of undefined rows."""
    if not isinstance(cell, Estimate):
        return "" if cell is None else str(cell)
    lost = f" ({cell.n_undefined} undefined)" if cell.n_undefined else ""
    if not cell.is_defined:
        counted = (cell.why or "")[:1].isdigit()  # the reason begins with the number of rows
        return f"undefined: {cell.why or 'no value'}{'' if counted else lost}"
    if math.isnan(cell.low) or math.isnan(cell.high):
        return f"{number(cell.value, digits)}{lost}"
    return f"{number(cell.value, digits)} [{number(cell.low, digits)}, {number(cell.high, digits)}]{lost}"


def number(value: float, digits: int) -> str:
    """Return a number with ``digits`` decimals; tiny ones in scientific notation, never as 0.000."""
    if math.isnan(value):
        return "–"
    if math.isinf(value) or (value != 0 and abs(value) < 0.5 * 10**-digits):
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def _grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return headings and text cells, with the paper's value and the difference after each printed column."""
    shown = [
        column for column in table.columns if any(_printed(table, p, column) for p in range(len(table.rows)))
    ]
    headings = list(table.keys)
    for column in table.columns:
        headings += [column.heading, *([f"{column.heading}: paper", "difference"] if column in shown else [])]
    body = []
    for place, row in enumerate(table.rows):
        cells = [str(row[key]) for key in table.keys]
        for column in table.columns:
            cells.append(cell_text(row[column.name], column.digits))
            if column in shown:
                cells += _paper_text(row[column.name], _printed(table, place, column), column.digits)
        body.append(cells)
    return headings, body


def _paper_text(cell: Cell, printed: Printed | None, digits: int) -> list[str]:
    if printed is None:
        return ["", ""]
    value = printed.value if isinstance(printed.value, str) else f"{printed.value:g}"
    difference = printed.difference(cell)
    return [value, "" if math.isnan(difference) else f"{difference:+.{digits}f}"]


def _text(table: Table, width: int | None) -> str:
    """Estimates take up to three lines: the value, its interval, and the paper's value with the difference.

    Reasons of undefined cells are numbered and listed below, so that columns stay narrow. Columns that are
    undefined for one reason in every row become one line below, without a grid if no other number is left.
    """
    reasons: dict[str, int] = {}
    empty = _empty_columns(table)
    columns = [column for column in table.columns if column not in empty]
    heads = (*table.keys, *(column.heading for column in columns))
    grid = [[_word_lines(name, width) for name in heads]]
    for place, row in enumerate(table.rows):
        cells = [_word_lines(row[key], width) for key in table.keys]
        for column in columns:
            lines = _cell_lines(row[column.name], column.digits, reasons, width)
            cells.append(lines + _paper_line(row[column.name], _printed(table, place, column), column.digits))
        grid.append(cells)
    lines = [*_folded(table.title, width, ""), ""]
    measured = any(isinstance(row[column.name], Estimate) for row in table.rows for column in columns)
    if measured or not empty:
        lines += lay_out(grid, keys=len(table.keys), width=width)
    for reason, number in reasons.items():
        lines += _folded(f"({number}) {reason}", width, "  ")
    for reason in dict.fromkeys(empty.values()):
        names = "; ".join(dict.fromkeys(column.heading for column, why in empty.items() if why == reason))
        lines += _folded(f"Undefined in every row: {names} ({reason}).", width, "  ")
    for note in table.notes:
        lines += _folded(note, width, "  ")
    return "\n".join([*lines, ""])


def _empty_columns(table: Table) -> dict[Column, str]:
    """Return the columns that are undefined in every row for the same reason, with the reason."""
    found: dict[Column, str] = {}
    for column in table.columns:
        cells = [row[column.name] for row in table.rows if row[column.name] is not None]
        reasons = {cell.why if isinstance(cell, Estimate) and not cell.is_defined else None for cell in cells}
        printed = any(_printed(table, place, column) for place in range(len(table.rows)))
        if len(reasons) == 1 and (reason := reasons.pop()) and not printed:
            found[column] = reason
    return found


def _folded(text: str, width: int | None, indent: str) -> list[str]:
    if width is None:
        return [indent + text]
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent]


def _word_lines(value: object, width: int | None) -> list[str]:
    text = str(value)
    return [text] if width is None else textwrap.wrap(text, max(12, width // 3)) or [""]


def _cell_lines(cell: Cell, digits: int, reasons: dict[str, int], width: int | None) -> list[str]:
    if not isinstance(cell, Estimate):
        return _word_lines(cell_text(cell), width)
    mark = f" ({reasons.setdefault(cell.why, len(reasons) + 1)})" if cell.why else ""
    lost = [f"{cell.n_undefined} undefined{mark}"] if cell.n_undefined else []
    if not cell.is_defined:
        return [f"undefined{mark}", *([f"n = 0 of {cell.n_undefined}"] if lost else [])]
    first = number(cell.value, digits) + ("" if lost else mark)
    if math.isnan(cell.low) or math.isnan(cell.high):
        return [first, *lost]
    return [first, f"[{number(cell.low, digits)}, {number(cell.high, digits)}]", *lost]


def _paper_line(cell: Cell, printed: Printed | None, digits: int) -> list[str]:
    if printed is None:
        return []
    value, difference = _paper_text(cell, printed, digits)
    return [f"paper {value}" + (f", {difference}" if difference else "")]


def _markdown(table: Table) -> str:
    headings, body = _grid(table)
    rows = (headings, ["---"] * len(headings), *body)
    return fill("table.md.j2", title=table.title, rows=rows, notes=table.notes)


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "−": "$-$",
    "ρ": r"$\rho$",
    "Γ": r"$\Gamma$",
    "σ": r"$\sigma$",
    "×": r"$\times$",
    "²": "$^2$",
    "Σ": r"$\Sigma$",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "–": "--",
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex(table: Table) -> str:
    headings, body = _grid(table)
    layout = "l" * len(table.keys) + "r" * (len(headings) - len(table.keys))
    lines = [r"\begin{table}[ht]", r"\centering\small", rf"\caption{{{_latex_text(table.title)}}}"]
    lines += [rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
    rows = [" & ".join(_latex_text(cell) for cell in row) + r" \\" for row in (headings, *body)]
    lines += [rows[0], r"\midrule", *rows[1:], r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {_latex_text(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _csv(table: Table) -> str:
    """One line per row; an estimate takes six columns, or eight where the paper prints a value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    wide = [
        column
        for column in table.columns
        if any(isinstance(row[column.name], Estimate) for row in table.rows)
    ]
    headings = ["table", *table.keys]
    for column in table.columns:
        ends = ("", "_low", "_high", "_n", "_n_undefined", "_why") if column in wide else ("",)
        headings += [f"{column.name}{end}" for end in ends]
        headings += [f"{column.name}_paper", f"{column.name}_difference"] if table.printed else []
    writer.writerow(headings)
    for place, row in enumerate(table.rows):
        cells: list[object] = [table.name, *(row[key] for key in table.keys)]
        for column in table.columns:
            cells += _csv_cells(row[column.name], column in wide)
            if table.printed:
                printed = _printed(table, place, column)
                cells += (
                    ["", ""]
                    if printed is None
                    else [printed.value, _plain(printed.difference(row[column.name]))]
                )
        writer.writerow(cells)
    return out.getvalue()


def _csv_cells(cell: Cell, wide: bool) -> list[object]:
    if isinstance(cell, Estimate):
        return [
            _plain(cell.value),
            _plain(cell.low),
            _plain(cell.high),
            cell.n,
            cell.n_undefined,
            cell.why or "",
        ]
    return [cell, *([""] * 5 if wide else [])]


def _plain(value: float) -> object:
    return "" if math.isnan(value) else repr(value)


def _printed(table: Table, place: int, column: Column) -> Printed | None:
    return table.printed.get((place, column.name))


_WRITERS: dict[str, Callable[[Table], str]] = {
    "csv": _csv,
    "latex": _latex,
    "markdown": _markdown,
}
FORMATS = ("text", *_WRITERS, "json")
