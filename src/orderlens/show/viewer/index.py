"""The viewer's list of traces: a table in DuckDB's memory, filtered, sorted and cut into pages.

It is filled in three stages, so that the first page never waits for a large run: the first few hundred
traces; path statistics of all traces; then texts, verdicts and EOS cascades. A request waits for a later
stage only if it needs it. Conditions are written ``var > 0.5, mean < -1``. Runs are only read.
"""

# ruff: noqa: S608  statements consist of constants; values of a request are passed as parameters

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import UserInputError
from orderlens.show.views import TraceKey, plain_row
from orderlens.store.frame import import_duckdb
from orderlens.store.reader import Run
from orderlens.store.samples import samples_schema
from orderlens.store.schema import TRACE_KEY
from orderlens.store.verdicts import latest_verdicts

KEY = ("run", *TRACE_KEY)
_NUMBERS = ("n", "mean", "var", "passes", "gap")
COLUMNS = ("row", *KEY, *_NUMBERS, "cascade", "correct", "text", "prompt")
"""Columns of the list, in order."""
SORTS = {
    "name": ("sample_id",),
    "label": ('"order"', "seed", "temperature"),
    "mean": ("mean",),
    "var": ("var",),
    "gap": ("gap",),
    "passes": ("passes",),
    "cascade": ("cascade",),
    "correct": ("correct",),
    "n": ("n",),
}
"""Column on the page → columns that the list is sorted by."""

_KEYS = ", ".join(f'"{name}"' for name in KEY)
_SAME = " AND ".join(f'a."{name}" IS NOT DISTINCT FROM b."{name}"' for name in KEY)
_FIXED = "temperature IS NULL AND likelihood IN ('exact', 'estimate') AND n_passes >= n + n_overflow"
_LIKELY = f"FILTER ({_FIXED}) OVER comparable"

_FINITE = ", ".join(f"CASE WHEN isfinite({name}) THEN {name} END AS {name}" for name in ("mean", "var"))
_GAP = f"CASE WHEN count(*) {_LIKELY} > 1 THEN max(mean) {_LIKELY} - min(mean) {_LIKELY} END AS gap"
_COUNTS = "n, n_eos, n_overflow, n_passes AS passes"
_WINDOW = "WINDOW comparable AS (PARTITION BY run, task, temperature, sample_id)"
_LISTED = f"SELECT row_number() OVER () AS row, {_KEYS}, {_COUNTS}, {_FINITE}, {_GAP} FROM {{}} {_WINDOW}"
PEEK = f"CREATE TABLE peek AS {_LISTED.format('peeked')}"
TRACES = f"CREATE TABLE traces AS {_LISTED.format('samples')}"

_TEXTS = f"""
CREATE TABLE texts AS
SELECT a.row, any_value(coalesce(b.text, b.prompt_text)) AS text, any_value(b.prompt_text) AS prompt
FROM outputs b JOIN traces a ON {_SAME} GROUP BY a.row
"""
_VERDICTS = f"""
CREATE TABLE judged AS
SELECT a.row, b.correct FROM counting b JOIN traces a ON {_SAME}
"""
_ENDED = f"""
CREATE TABLE ended AS
SELECT a.row, b.eos_cascade::BIGINT AS cascade, b.content_mean, b.content_var
FROM ending b JOIN traces a ON {_SAME}
"""
ENDING = "SELECT DISTINCT run FROM traces WHERE n_eos > 0"
"""The runs with EOS tokens: only they have cascades, and content that differs from the whole text."""
LATER = (_TEXTS, _VERDICTS, _ENDED)
"""Statements that add texts, verdicts and cascades to the list."""

_SHOWN = f"row, {_KEYS}, {', '.join(_NUMBERS)}"
FIRST = f"SELECT {_SHOWN}, 0 AS cascade, NULL AS correct, NULL AS text, NULL AS prompt FROM {{}}"
_JOINED = "traces LEFT JOIN ended USING (row) LEFT JOIN judged USING (row) LEFT JOIN texts USING (row)"
_LATE = "coalesce(cascade, 0) AS cascade, correct, text, prompt"
WHOLE = f"SELECT {_SHOWN}, {_LATE} FROM {_JOINED}"
PLANE = f"""
SELECT {_SHOWN}, {_LATE}, coalesce(content_mean, mean) AS x, coalesce(content_var, var) AS y FROM {_JOINED}
"""
"""The list, with mean and Var without EOS tokens as ``x`` and ``y``, like the figure ``plane``."""

_NAMED = {"var": "var", "mean": "mean", "gap": "gap", "passes": "passes", "eos": "cascade", "n": "n"}
"""Name in a condition → column of the list."""
_WAYS = {"≤": "<=", "≥": ">="}
_BETWEEN = re.compile(r"[,;&]|\band\b", re.IGNORECASE)
_ONE = re.compile(
    r"\s*([a-z]+)\s*(<=|>=|<|>|=|≤|≥)\s*([-−+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Range:
    """One condition: a column of the list, ``<``, ``<=``, ``>``, ``>=`` or ``=``, and a number."""

    column: str
    way: str
    value: float


def parse_ranges(text: str) -> tuple[Range, ...]:
    """Return the conditions of a text, all of which must hold.

    Raises:
        UserInputError: a part of it is not a condition.
    """
    return tuple(_parsed(part) for part in _BETWEEN.split(text) if part.strip())


def _parsed(part: str) -> Range:
    found = _ONE.fullmatch(part)
    column = _NAMED.get(found[1].lower()) if found else None
    if found is None or column is None:
        known = ", ".join(_NAMED)
        raise UserInputError(
            f"'{part.strip()[:40]}' is not a condition; write for example: var > 0.5, mean < -1 ({known})"
        )
    return Range(column, _WAYS.get(found[2], found[2]), float(found[3].replace("−", "-")))


PAGE_ROWS = 50
MOST_POINTS = 4000
"""Traces on the plane at most."""
_LATE_SORTS = ("cascade", "correct")


@dataclass(frozen=True, slots=True)
class Query:
    """Filters, sorting and page of the list; the fields of ``Query`` in ``frontend/src/types.ts``.

    Attributes:
        run: a run's name; empty for all.
        order: an order's label; empty for all.
        text: searched in ids, prompts and texts, ignoring case.
        correct: the verdict; empty for any.
        cascade: minimum length of the EOS cascade.
        where: conditions on numbers, ``var > 0.5, mean < -1``.
        sort: one of ``SORTS``.
        descending: largest first; undefined values come last in both directions.
        page: from 0.
        whole: wait until all rows are read.
    """

    run: str = ""
    order: str = ""
    text: str = ""
    correct: Literal["", "yes", "no", "none"] = ""
    cascade: int = 0
    where: str = ""
    sort: str = "var"
    descending: bool = True
    page: int = 0
    whole: bool = True

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise UserInputError(f"cannot sort by '{self.sort}' (use {', '.join(SORTS)})")
        if self.correct not in ("", "yes", "no", "none"):
            raise UserInputError(f"'{self.correct}' is not a verdict; use yes, no or none")
        if not 0 <= self.page < 1 << 31 or not 0 <= self.cascade < 1 << 31:
            raise UserInputError("page and cascade are whole numbers from 0 on")
        parse_ranges(self.where)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The conditions on numbers."""
        return parse_ranges(self.where)

    @property
    def needs_whole(self) -> bool:
        """Whether filters or sorting need texts, verdicts or cascades."""
        late = any(item.column in _LATE_SORTS for item in self.ranges)
        by_query = self.sort in _LATE_SORTS or self.text or self.correct or self.cascade
        return bool(self.whole or by_query or late)


def _ended(run: Run) -> pa.Table:
    """Return EOS cascade, and content without EOS, of every trace that has an EOS, with its run and key."""
    chunks = [samples_schema("cascade", run=True).empty_table(), *run.iter_samples(("cascade",), "eos")]
    table = pa.concat_tables(chunks)
    kept = table.filter(pc.greater(table["n_eos"], 0))
    return kept.select([*KEY, "eos_cascade", "content_mean", "content_var"])


class Index:
    """The list of the traces of a run; a background thread fills it from the start."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_graded = "verdicts" in run.tables
        self._steps = {name: threading.Event() for name in ("peek", "traces", "whole")}
        self._error: BaseException | None = None
        self._connections: dict[str, Any] = {}
        threading.Thread(target=self._make, name="orderlens-index", daemon=True).start()

    def _make(self) -> None:
        try:
            first = import_duckdb().connect()
            first.register("peeked", self.run.first_samples())
            self._step("peek", first, [PEEK])
            whole = self.run.connection()  # compares every part with its record first
            self._step("traces", whole, [TRACES])
            whole.register("counting", latest_verdicts(whole.table("verdicts").to_arrow_table()))
            ending = [run for (run,) in whole.execute(ENDING).fetchall()]
            whole.register("ending", _ended(self.run.only(ending)))
            self._step("whole", whole, LATER)
        except BaseException as error:  # noqa: BLE001  raised again by ``wait``
            self._error = error
        finally:
            for step in self._steps.values():
                step.set()

    def _step(self, name: str, connection: Any, statements: Sequence[str]) -> None:
        for statement in statements:
            connection.execute(statement)
        self._connections[name] = connection
        self._steps[name].set()

    def wait(self, step: str = "whole") -> None:
        """Wait until a stage is ready: ``peek``, ``traces`` or ``whole``.

        Raises:
            OrderLensError: the run cannot be read.
        """
        self._steps[step].wait()
        if self._error is not None:
            raise self._error

    def orders(self) -> list[str]:
        """Return the orders that occur, sorted."""
        self.wait("traces")
        return [row[0] for row in self._fetch("traces", 'SELECT DISTINCT "order" FROM traces ORDER BY 1', [])]

    def page(self, query: Query) -> dict[str, Any]:
        """Return the ``rows`` of one page, the ``total``, and how complete they are (``state``).

        The state is ``whole``, ``traces`` (texts, verdicts and cascades are not read yet) or ``peek`` (only
        the first traces of the run are read and counted).
        """
        self.wait("whole" if query.needs_whole else "peek")
        state = max(self._connections, key=_ORDER.index)
        source = {"peek": FIRST.format("peek"), "traces": FIRST.format("traces"), "whole": WHOLE}[state]
        where, values = _conditions(query)
        total = self._fetch(state, f"SELECT count(*) FROM ({source}) WHERE {where}", values)[0][0]
        way = "DESC" if query.descending else "ASC"
        by = ", ".join(f"{name} {way} NULLS LAST" for name in SORTS[query.sort])
        found = self._fetch(
            state,
            f"SELECT * FROM ({source}) WHERE {where} ORDER BY {by}, sample_id, row "
            f"LIMIT {PAGE_ROWS} OFFSET {PAGE_ROWS * query.page}",
            values,
        )
        return {"total": total, "rows": [_row(row) for row in found], "size": PAGE_ROWS, "state": state}

    def plane(self, query: Query) -> dict[str, Any]:
        """Return the traces of a query on the plane of mean and Var, and the medians of each run and task.

        Both leave out EOS tokens. At most ``MOST_POINTS`` traces are returned, chosen by hash. Medians are
        over all orders for every query; in a graded run and task over traces with a verdict.
        """
        self.wait("whole")
        known = "isfinite(x) AND isfinite(y)"
        where, values = _conditions(query)
        fitting = f"FROM ({PLANE}) WHERE {where} AND {known}"
        total = self._fetch("whole", f"SELECT count(*) {fitting}", values)[0][0]
        shown = "* EXCLUDE (x, y) REPLACE (x AS mean, y AS var)"
        chosen = f"SELECT {shown} {fitting} ORDER BY hash(row), row LIMIT {MOST_POINTS}"
        points = [_row(row) for row in self._fetch("whole", chosen, values)]
        middle = "coalesce(median({0}) FILTER (correct IS NOT NULL), median({0}))".format
        medians = self._fetch(
            "whole",
            f"SELECT run, task, {middle('x')}, {middle('y')} FROM ({PLANE}) WHERE {known} GROUP BY run, task",
            [],
        )
        groups = [dict(zip(("run", "task", "mean", "var"), row, strict=True)) for row in medians]
        return {"total": total, "points": points, "groups": groups}

    def _fetch(self, state: str, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        cursor = self._connections[state].cursor()  # one per request: requests may run in parallel
        try:
            return list(cursor.execute(statement, values).fetchall())
        finally:
            cursor.close()


_ORDER = ("peek", "traces", "whole")


def _conditions(query: Query) -> tuple[str, list[Any]]:
    """Return the WHERE clause and its values; no text of the query enters the statement itself."""
    parts: list[tuple[str, list[Any]]] = [("true", [])]
    if query.run:
        parts.append(("run = ?", [query.run]))
    if query.order:
        parts.append(('"order" = ?', [query.order]))
    if query.correct:
        parts.append(({"yes": "correct", "no": "NOT correct", "none": "correct IS NULL"}[query.correct], []))
    if query.cascade:
        parts.append(("cascade >= ?", [query.cascade]))
    parts += [
        (f"{item.column} {item.way} ?", [item.value]) for item in query.ranges
    ]  # both out of fixed lists
    if wanted := query.text.strip().lower():
        places = ("sample_id", "text", "prompt")
        found = " OR ".join(f"contains(lower(coalesce({place}, '')), ?)" for place in places)
        parts.append((f"({found})", [wanted] * len(places)))
    return " AND ".join(text for text, _ in parts), [value for _, values in parts for value in values]


def _row(values: tuple[Any, ...]) -> dict[str, Any]:
    named = dict(zip(COLUMNS, values, strict=True))
    key = TraceKey(**{name: named[name] for name in KEY})
    shown = ("n", "mean", "var", "passes", "gap", "cascade", "correct", "text")
    return plain_row(key, **{name: named[name] for name in shown})
