"""Tables of generated text: the paper's Table 1, the shape of the reveal order, and the temperature sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.frames import joined_keys
from orderlens.analysis.study import NOT_GENERATED, Study
from orderlens.analysis.table import Cell, Column, Table, has_generated, has_temperatures, table
from orderlens.analysis.traces import pick, picked_traces
from orderlens.metrics.estimate import Clusters, Estimate, mean, median
from orderlens.metrics.order_shape import agreement
from orderlens.metrics.segments import IntArray

_METRICS = (
    ("mean_logq", "mean", "mean log q"),
    ("content_mean_logq", "content_mean", "content mean log q"),
    ("var", "var", "Var(log q)"),
    ("content_var", "content_var", "content Var(log q)"),
    ("eos_fraction", "eos_fraction", "EOS fraction"),
    ("distinct_3", "distinct_3", "Distinct-3"),
    ("distinct_3_matched", "distinct_3_matched", "Distinct-3, equal lengths"),
    ("distinct_2", "distinct_2", "Distinct-2"),
    ("distinct_1", "distinct_1", "Distinct-1"),
    ("token_entropy", "token_entropy", "token entropy (nats)"),
    ("n_content", "n_content", "content tokens"),
    ("mean_entropy", "mean_entropy", "mean entropy (nats)"),
    ("mean_margin", "mean_margin", "mean margin"),
    ("tied_rate", "tied_rate", "steps with ties"),
)
_EXTERNAL = (
    "external_ppl_whole",
    "external_ppl",
    "external_ppl_of_mean",
    "external_tokens",
    "retokenization_ratio",
)


@table("trace and text metrics per order (Table 1)", needs=("text",), traces="generate", suits=has_generated)
def generation(study: Study) -> list[Table]:
    """Return the generation table: metrics in rows, orders in columns (the paper's Table 1)."""
    frame = study.decoded.assign(distinct_3_matched=study.distinct_matched.reindex(study.decoded.index))
    orders = study.orders(frame) if len(frame) else study.orders(study.samples)
    by_order = {order: _metric_cells(study, frame[frame["order"] == order]) for order in orders}
    headings = dict([(name, heading) for name, _, heading in _METRICS] + list(_external_headings(study)))
    rows: list[dict[str, Cell]] = []
    for name, heading in headings.items():
        row: dict[str, Cell] = {"metric": name, "meaning": heading}
        rows.append(row | {order: by_order[order][name] for order in orders})
    columns = (Column("meaning", "meaning"), *(Column(order, order) for order in orders))
    n = {order: int((frame["order"] == order).sum()) for order in orders}
    at = f"Temperature {study.temperature:g}; " if len(frame) else ""
    notes = (
        f"{at}texts per order: {', '.join(f'{k} {v}' for k, v in n.items())}.",
        "Statistics are computed per text, then averaged.",
        study.options.content_note,
        "The paper's external PPL is of prompt and text as one text; 'of the text' scores its tokens alone.",
        "Distinct-n falls with length; the row 'equal lengths' cuts all texts of a prompt to the shortest.",
    )
    title = "Generated text: trace and quality metrics per order"
    return [Table("generation", title, ("metric",), columns, tuple(rows), notes)]


def _external_headings(study: Study) -> Sequence[tuple[str, str]]:
    name = study.evaluator.name if study.evaluator else "no evaluator"
    meanings = (
        f"external PPL of prompt and text, median ({name})",
        f"external PPL of the text, median ({name})",
        "external PPL of the text, exp(mean NLL)",
        "evaluator tokens scored",
        "evaluator tokens / generator tokens",
    )
    return list(zip(_EXTERNAL, meanings, strict=True))


def _metric_cells(study: Study, part: pd.DataFrame) -> dict[str, Estimate]:
    if not len(part):
        return {name: Estimate.undefined(NOT_GENERATED) for name in (*(m[0] for m in _METRICS), *_EXTERNAL)}
    found = study.estimates(part, [column for _, column, _ in _METRICS])
    cells = {name: cell for (name, _, _), cell in zip(_METRICS, found, strict=True)}
    return cells | external_cells(study, part)


def external_cells(study: Study, part: pd.DataFrame) -> dict[str, Estimate]:
    """Return the external perplexities (medians, exp of the mean NLL), tokens scored and their ratio."""
    if study.external is None:
        return dict.fromkeys(_EXTERNAL, Estimate.undefined(study.no_evaluator))
    scores = study.external.reindex(part.index)
    nll = scores["nll"].to_numpy(np.float64)
    clusters = study.clusters(part)
    why = "no text was scored"
    whole = median(np.exp(scores["nll_whole"].to_numpy(np.float64)), clusters, why)
    middle = median(np.exp(nll), clusters, why)
    average = mean(nll, clusters, why)
    value, low, high = (math.exp(number) for number in (average.value, average.low, average.high))
    raised = replace(average, value=value, low=low, high=high)
    known = scores[np.isfinite(nll)]
    total, own = float(known["n_scored"].sum()), float(known["n_tokens"].sum())
    ratio = Estimate(total / own, n=len(known)) if own else Estimate.undefined(why)
    counted = Estimate(total, n=len(known))
    return dict(zip(_EXTERNAL, (whole, middle, raised, counted, ratio), strict=True))


_SHAPE = (
    Column("spearman_l2r_block0", "ρ(L2R) block 0"),
    Column("spearman_l2r_mean", "ρ(L2R) blocks"),
    Column("all_spearman_l2r_block0", "ρ with EOS"),
    Column("local_arness_block0", "local AR-ness@1"),
    Column("global_arness_block0", "global AR-ness@1"),
    Column("concordance_block0", "concordance"),
    Column("frontier_adjacent", "next to known text"),
    Column("frontier_distance", "distance to known text", 2),
    Column("eos_cascade", "EOS cascade", 2),
    Column("eos_cascade_start", "cascade starts at step", 1),
    Column("eos_cascade_resume", "content resumes at step", 1),
)


@table(
    "closeness to left-to-right, agreement of orders",
    needs=("shape", "cascade"),
    traces="generate",
    suits=has_generated,
)
def reveal_order(study: Study) -> list[Table]:
    """Return how close each order's paths are to left-to-right, and how well the orders agree."""
    kind = "generated" if len(study.decoded) else "scored"
    notes = (
        f"Content paths of {kind} traces, except in 'ρ with EOS'; steps count from 0.",
        study.options.content_note,
        "local AR-ness@1: share of steps to the next position.",
        "global AR-ness@1: share of reveals at the leftmost mask. The two are not comparable.",
        "Random orders of n positions have global AR-ness H_n/n and concordance 0.5.",
    )
    columns = (Column("n", "n"), *_SHAPE)
    title = "Reveal order: closeness to left-to-right inside a block"
    table = Table("reveal-order", title, ("order",), columns, tuple(path_shapes(study)), notes)
    return [table, _agreement_table(study, _paths(study))]


def _paths(study: Study) -> pd.DataFrame:
    return study.decoded if len(study.decoded) else study.scored


def path_shapes(study: Study) -> list[dict[str, Cell]]:
    """Return how close each order's paths are to left-to-right."""
    frame, names = _paths(study), [column.name for column in _SHAPE]
    rows: list[dict[str, Cell]] = []
    for order in study.orders(frame):
        part = frame[frame["order"] == order]
        found = [_explained(c, name) for c, name in zip(study.estimates(part, names), names, strict=True)]
        rows.append({"order": order, "n": len(part), **dict(zip(names, found, strict=True))})
    return rows


def _explained(cell: Estimate, column: str) -> Estimate:
    """Give the reason of undefined cascade steps: the trace has no cascade."""
    reasons = {
        "eos_cascade_start": "traces without an EOS cascade",
        "eos_cascade_resume": "traces without content after an EOS cascade",
    }
    if column in reasons and cell.n_undefined:
        return replace(cell, why=reasons[column])
    return cell


def _agreement_table(study: Study, frame: pd.DataFrame) -> Table:
    matrix = agreement_matrix(study, frame)
    orders = list(matrix)
    rows: list[dict[str, Cell]] = [{"order": order, **matrix[order]} for order in orders]
    columns = tuple(Column(order, order) for order in orders)
    title = "Agreement: Spearman of two orders' reveal steps in block 0, on shared positions"
    return Table("agreement", title, ("order",), columns, tuple(rows))


_SWEEP = (
    Column("external_ppl_whole", "median ext. PPL, with prompt", 2),
    Column("external_ppl", "median ext. PPL", 2),
    Column("var", "Var(log q)"),
    Column("content_mean", "content mean log q"),
    Column("eos_fraction", "EOS fraction"),
    Column("distinct_3", "Distinct-3"),
)


@table("sampling temperature sweep (Fig. S1)", needs=("text",), traces="sweep", suits=has_temperatures)
def temperature(study: Study) -> list[Table]:
    """Return the temperature sweep per order (data of the paper's Fig. S1)."""
    rows = sweep_rows(study)
    columns = (Column("n", "n"), *_SWEEP)
    title = "Temperature sweep: tokens sampled at T, log q at temperature 1"
    notes = spreads(rows, "external_ppl_whole", "spread of median external PPL across orders {:.3g}")
    notes = [study.options.content_note, *notes, *tails(study)]
    return [Table("temperature", title, ("order", "temperature"), columns, tuple(rows), tuple(notes))]


def sweep_rows(study: Study) -> list[dict[str, Cell]]:
    """Return the statistics of generated text by order and temperature."""
    frame = study.generated
    rows: list[dict[str, Cell]] = []
    for order in study.orders(frame if len(frame) else study.samples):
        of_order = frame[frame["order"] == order]
        values = sorted(of_order["temperature"].unique()) or [math.nan]
        rows += [_sweep_row(study, of_order[of_order["temperature"] == t], order, float(t)) for t in values]
    return rows


def _sweep_row(study: Study, part: pd.DataFrame, order: str, value: float) -> dict[str, Cell]:
    head: dict[str, Cell] = {"order": order, "temperature": f"{value:g}", "n": len(part)}
    names = [column.name for column in _SWEEP[2:]]
    if not len(part):
        return head | {column.name: Estimate.undefined(NOT_GENERATED) for column in _SWEEP}
    external = external_cells(study, part)
    perplexity = {name: external[name] for name in ("external_ppl_whole", "external_ppl")}
    return head | perplexity | dict(zip(names, study.estimates(part, names), strict=True))


def spreads(rows: Sequence[dict[str, Cell]], column: str, text: str) -> list[str]:
    """Return a note per temperature with the range of a column across orders; ``{}`` in ``text`` is it."""
    out = []
    for value in dict.fromkeys(str(row["temperature"]) for row in rows):
        cells = [row[column] for row in rows if row["temperature"] == value]
        known = [cell.value for cell in cells if isinstance(cell, Estimate) and cell.is_defined]
        if len(known) > 1:
            out.append(f"T = {value}: {text.format(max(known) - min(known))}.")
    return out


def tails(study: Study) -> list[str]:
    """Return a note per temperature with the shares of texts whose perplexity is very large or ordinary."""
    if study.external is None:
        return []
    frame, out = study.generated, []
    ppl = np.exp(study.external["nll_whole"].reindex(frame.index))
    large, bulk = paper.number("collapsed_ppl"), paper.number("bulk_ppl")
    for value, known in ppl.dropna().groupby(frame["temperature"]):
        high, low = (100 * float(np.mean(share)) for share in (known > large, known < bulk))
        shares = f"{high:.1f} % of texts above {large:,.0f}, {low:.1f} % below {bulk:g}"
        out.append(f"T = {value:g}: external PPL with prompt: {shares}.")
    return out


MAX_SAMPLES = 500
"""Samples compared: a path of every order is kept in memory, so their number is bounded."""

_KEY = ("prompt", "temperature")
Paths = dict[str, IntArray]


def agreement_matrix(study: Study, frame: pd.DataFrame) -> dict[str, dict[str, Estimate]]:
    """Return the mean agreement of every pair of orders over the samples of ``frame`` (first seeds)."""
    orders = study.orders(frame)
    paths = _block0_paths(study, _chosen(study, frame))
    out: dict[str, dict[str, Estimate]] = {order: {} for order in orders}
    for place, first in enumerate(orders):
        for second in orders[place:]:
            cell = _pair(study, paths.get(first, {}), paths.get(second, {}))
            out[first][second] = out[second][first] = cell
    return out


def _pair(study: Study, first: Paths, second: Paths) -> Estimate:
    shared = [key for key in first if key in second]
    if not shared:
        return Estimate.undefined("no sample under both orders")
    values = [agreement(first[key], second[key]) for key in shared]
    return mean(values, Clusters(shared, study.options.resampling), "fewer than 2 shared content positions")


def _chosen(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one trace per sample and order, of at most MAX_SAMPLES samples."""
    first = frame.sort_values("seed", kind="stable").drop_duplicates([*_KEY, "order"]).sort_index()
    keyed = first.assign(key=joined_keys(first, _KEY))
    kept = pick(keyed["key"].tolist(), MAX_SAMPLES, study.options.resampling.seed, "agreement")
    return keyed[keyed["key"].isin(kept)]


def _block0_paths(study: Study, chosen: pd.DataFrame) -> dict[str, Paths]:
    """Return the content positions of block 0 in reveal order, by order and sample."""
    out: dict[str, Paths] = {}
    names = dict(zip(chosen.index, zip(chosen["order"], chosen["key"], strict=True), strict=True))
    content, columns = study.options.content, ["block", "position"]
    for row, traces, rows in picked_traces(study.run, study.all_traces, chosen.index, columns, content):
        keep = traces.content[rows] & (traces.columns["block"][rows] == 0)
        order, key = names[row]
        out.setdefault(order, {})[key] = traces.columns["position"][rows][keep]
    return out
