"""The SQL behind the viewer's list. Constants only: what a reader asks for travels as parameters."""
# ruff: noqa: S608

from __future__ import annotations

from orderlens.store.schema import TRACE_KEY

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
"""By what the list is sorted, by the name of the column on the page."""

_KEYS = ", ".join(f'"{name}"' for name in KEY)
_SAME = " AND ".join(f'a."{name}" IS NOT DISTINCT FROM b."{name}"' for name in KEY)
_LIKELY = "FILTER (likelihood IN ('exact', 'estimate') AND n_passes >= n + n_overflow) OVER beside"

_LISTED = f"""
SELECT row_number() OVER () AS row, {_KEYS}, n, n_eos, n_overflow, n_passes AS passes,
    CASE WHEN isfinite(mean) THEN mean END AS mean,
    CASE WHEN isfinite(var) THEN var END AS var,
    CASE WHEN count(*) {_LIKELY} > 1 THEN max(mean) {_LIKELY} - min(mean) {_LIKELY} END AS gap
FROM {{}}
WINDOW beside AS (PARTITION BY run, task, temperature, sample_id)
"""
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
_CASCADES = f"""
CREATE TABLE cascades AS
SELECT a.row, b.eos_cascade::BIGINT AS cascade FROM sealed b JOIN traces a ON {_SAME}
"""
SEALING = "SELECT DISTINCT run FROM traces WHERE n_eos > 0"
"""The runs that may have cascades."""
LATER = (_TEXTS, _VERDICTS, _CASCADES)
"""What follows the list."""

_SHOWN = f"row, {_KEYS}, {', '.join(_NUMBERS)}"
FIRST = f"SELECT {_SHOWN}, 0 AS cascade, NULL AS correct, NULL AS text, NULL AS prompt FROM {{}}"
WHOLE = f"""
SELECT {_SHOWN}, coalesce(cascade, 0) AS cascade, correct, text, prompt
FROM traces LEFT JOIN cascades USING (row) LEFT JOIN judged USING (row) LEFT JOIN texts USING (row)
"""
