"""The frontier as a table: quality, tokens per pass, and the gain over the ladder at equal passes."""

from __future__ import annotations

from orderlens.analysis.frontier import Measure, ladder_of, measures
from orderlens.analysis.study import Study
from orderlens.analysis.table import Cell, Column, Table, table
from orderlens.analysis.traces import in_sets
from orderlens.metrics.estimate import Estimate

_COLUMNS = (
    Column("n", "n"),
    Column("quality", "quality"),
    Column("tokens_per_pass", "tokens/pass", 2),
    Column("passes", "passes/text", 1),
    Column("gain", "gain at equal passes", 4),
    Column("front", "on the front"),
)
_OVERVIEW_NOTES = (
    "tokens/pass counts every forward pass: committing, looking ahead, revising, completing a block.",
    "gain: over a mixture of two neighbouring rungs of the ladder with as many passes; positive is better.",
    "The table frontier adds passes per text and how texts end.",
)
NOTHING = "nothing to measure: the runs hold neither scored nor generated texts"
NOT_HERE = "not measured under this policy"


def has_ladder(study: Study) -> bool:
    """Whether an order was run with several numbers of tokens per pass."""
    frame = study.samples
    return bool(in_sets(frame).any()) and bool(ladder_of(study.orders(frame)))


@table("quality against tokens per pass, compared at equal passes", needs=("text",), suits=has_ladder)
def frontier(study: Study) -> Table:
    """Return one row per measure and policy."""
    found = measures(study)
    rows = [row for measure in found for row in _rows(study, measure)] or [_nothing()]
    title = "Quality against compute: every policy at its tokens per pass"
    return Table("frontier", title, ("measure", "order"), _COLUMNS, tuple(rows), _notes(found))


def overview(long: Table) -> Table:
    """Turn the frontier into one row per policy: what can be better, beside its tokens per pass."""
    rows: dict[str, dict[str, Cell]] = {}
    columns: dict[str, tuple[Column, ...]] = {}
    for row in long.rows:
        name, order = str(row["measure"]), str(row["order"])
        if not row["front"]:
            continue
        passes, gain = f"{name}, tokens/pass", f"{name}, gain"
        columns[name] = (Column(passes, "tokens/pass", 2), Column(name, name), Column(gain, "gain"))
        rows.setdefault(order, {"order": order}).update(
            {passes: row["tokens_per_pass"], name: row["quality"], gain: row["gain"]}
        )
    flat = tuple(column for group in columns.values() for column in group)
    missing: dict[str, Cell] = dict.fromkeys((column.name for column in flat), Estimate.undefined(NOT_HERE))
    filled = tuple(missing | row for row in rows.values())
    ladder = ladder_of(list(rows))
    notes = (*_OVERVIEW_NOTES, f"Ladder: {', '.join(ladder)}.") if ladder else _OVERVIEW_NOTES
    return Table("frontier-overview", long.title, ("order",), flat, filled, notes)


def _rows(study: Study, measure: Measure) -> list[dict[str, Cell]]:
    return [
        {
            "measure": measure.name,
            "order": point.order,
            "n": len(measure.prompts),
            "quality": point.quality,
            "tokens_per_pass": point.tokens_per_pass,
            "passes": point.passes,
            "gain": point.gain,
            "front": "" if point.front is None else "yes" if point.front else "no",
        }
        for point in measure.points(study.options.resampling)
    ]


def _nothing() -> dict[str, Cell]:
    empty = Estimate.undefined(NOTHING)
    head: dict[str, Cell] = {"measure": "(none)", "order": "(none)", "n": 0, "front": ""}
    return head | dict.fromkeys(("quality", "tokens_per_pass", "passes", "gain"), empty)


def _notes(found: list[Measure]) -> tuple[str, ...]:
    notes = [
        "passes/text counts every forward pass: committing, looking ahead, revising, completing a block.",
        "gain: quality less that of a mixture of two neighbouring rungs with as many passes; positive is",
        "better (bits and NLL saved, points won; for EOS just the difference). The same prompts throughout.",
        "on the front: no other policy is as good with as few passes (point estimates).",
    ]
    ladders = dict.fromkeys(", ".join(ladder_of(measure.orders)) for measure in found)
    notes += [f"Ladder: {names}." for names in ladders if names]
    notes += [
        f"{measure.name}: {measure.n_missing} prompts lack a value under some policy and do not count."
        for measure in found
        if measure.n_missing
    ]
    return tuple(notes)
