"""``orderlens runs diff``: do two runs decode the same? No model is needed.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Writes, name_incomplete
from orderlens.common.files import refuse_place
from orderlens.runs.options import FILE_OUT
from orderlens.runs.request import Opt

if TYPE_CHECKING:
    from orderlens.analysis.diff import Diff

LISTED = 20
"""Differing texts that are printed."""


@dataclass(frozen=True, kw_only=True)
class DiffRuns(Writes, Output):
    """Compare two runs pass by pass; exit code 1 if they decode differently.

    Each text gets a verdict: same, tie, rounding, different-rule, different-model or missing.
    golden:PRESET names a run of that preset that is shipped with the package.
    """

    a: Annotated[str, Opt("Run folder, its address, or golden:PRESET.", place=True, metavar="A")]
    b: Annotated[str, Opt("Run to compare with.", place=True, metavar="B")]
    noise: Annotated[
        float | None,
        Opt(
            "Differences of log-probabilities up to here count as rounding (nats).",
            shown="what the runs measured, else by precision",
            least=0,
        ),
    ] = None
    out: Annotated[Path | None, replace(FILE_OUT, help="Also write an HTML page with both paths.")] = None


@takes(DiffRuns)
def diff_runs(request: DiffRuns) -> int:
    """Print the comparison; return 1 if the runs differ."""
    from orderlens.analysis.diff import diff
    from orderlens.cli.console import print_json, print_text

    if request.out is not None:
        refuse_place(request.out, overwrite=request.overwrite)
    found = diff(request.a, request.b, noise=request.noise)
    for run in (found.a, found.b):
        name_incomplete(run)
    page = None
    if request.out is not None:
        from orderlens.show.diff_page import diff_page

        page = diff_page(found, request.out)
    if request.json:
        print_json(found.to_json() | ({"page": str(page)} if page else {}))
    else:
        print_text("\n".join(_lines(found)))
        if page:
            print_text(f"page: {page}")
    return 0 if found.same else 1


def _lines(found: "Diff") -> Iterator[str]:
    counts = ", ".join(f"{count} {name}" for name, count in found.totals.items() if count)
    yield f"{'same' if found.same else 'different'}: {counts or 'the runs hold no traces'}"
    left, right = found.tokens_per_pass
    if left == left and right == right:
        yield f"tokens per pass: {left:.3g} in A, {right:.3g} in B"
    yield f"noise: {found.noise:.3g} nats ({found.noise_source})"
    for item in found.explanations:
        yield f"explained by {item.setting}: {item.text} ({item.source})"
    rows = [row for row in found.table().to_arrow().to_pylist() if row["verdict"] != "same"]
    for row in rows[:LISTED]:
        orders = " | ".join(dict.fromkeys(str(row[name] or "–") for name in ("order_a", "order_b")))
        yield f"  {row['sample_id']} ({orders}): {row['verdict']}{_first(row)}"
    if len(rows) > LISTED:
        yield f"  and {len(rows) - LISTED} more (see --json)"


def _first(row: dict[str, object]) -> str:
    """Return where a pair first differs, with both candidates."""
    if row["first_pass"] is None:
        return ""
    sides = []
    for name, place in (("a", row["first_position"]), ("b", row["position_b"])):
        p = row[f"p_{name}"]
        if isinstance(p, float):
            sides.append(f"{name.upper()} token {row[f'token_{name}']} at {place}, p = {p:.4g}")
    return f" in pass {row['first_pass']}, position {row['first_position']}: {'; '.join(sides)}"
