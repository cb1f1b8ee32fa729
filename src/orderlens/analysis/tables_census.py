"""Rules among all orders of a span: regret, rank and Var per rule, and what all orders together show.

Means are over spans; intervals resample texts. Everything is read from the table ``census`` of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderlens.analysis.census import Census
from orderlens.analysis.study import Study
from orderlens.analysis.table import NO_CENSUS, Cell, Column, Table, has_census, table
from orderlens.metrics.census import ROUNDING
from orderlens.metrics.estimate import Clusters, Estimate, means
from orderlens.metrics.path import SIGMAS
from orderlens.rules.cards import in_paper_order

SAMPLED = (2, 4, 8, 16, 32)
"""Numbers of random orders whose expected range is compared with the range of all."""
COHERENT = "log P does not depend on the order"


@dataclass(frozen=True, slots=True)
class CensusFrames:
    """A row per span, and a row per span and rule; ``text`` numbers the ids of texts over all runs.

    Columns named ``…_each`` are per token. ``of_best`` is the share of the way from the mean of all
    orders to the best one. It, ranks and the Var of the likeliest order are undefined where log P does not
    depend on the order.
    """

    spans: pd.DataFrame
    rules: pd.DataFrame
    circulation: pd.DataFrame


def census_frames(study: Study) -> CensusFrames:
    """Return what the censuses of the study's runs show; a span that two runs hold is counted once."""
    spans, rules, squares = [], [], []
    for name in study.run.names:
        run = study.run.only([name])
        if "census" in run.tables:
            census = Census(run)
            spans.append(_more_per_span(census).assign(run=name, span=census.ids))
            rules.append(census.rules().to_pandas().assign(run=name))
            squares.append(_squares(census, spans[-1]).assign(run=name))
    keys = ["run", "sample_id", "start"]
    joined = pd.concat(spans, ignore_index=True)
    joined["text"] = pd.factorize(joined["sample_id"])[0]
    prompts = study.all_traces.drop_duplicates(["run", "sample_id"]).set_index(["run", "sample_id"])["prompt"]
    places = zip(joined["run"], joined["span"], joined["positions"], strict=True)
    joined["span"] = [(prompts[run, span], *positions) for run, span, positions in places]
    named = pd.concat(rules, ignore_index=True).merge(joined, on=keys, suffixes=("", "_all"))
    named = named.drop_duplicates(["span", "order", "seed"], ignore_index=True)
    joined = joined.drop_duplicates("span", ignore_index=True)
    size, above = named["size"], named["log_p"] - named["log_p_mean"]
    named["mean_each"], named["regret_each"] = named["log_p"] / size, named["regret"] / size
    named["gain_each"], named["var_excess"] = above / size, named["var"] - named["var_least"]
    room = named["log_p_best"] - named["log_p_mean"]
    named["of_best"] = above / room.where(room > ROUNDING)
    named["share_worse"] = named["share_worse"].where(room > ROUNDING)
    return CensusFrames(
        joined, named, pd.concat(squares, ignore_index=True).merge(joined[[*keys, "text"]], on=keys)
    )


def _more_per_span(census: Census) -> pd.DataFrame:
    """Return the spans with values per token, the expected range of few orders, the rank of the least Var."""
    frame = census.spans().to_pandas()
    found = [census.span(text, start) for text, start in census.places]
    for name in ("best", "mean", "worst", "sd"):
        frame[f"{name}_each"] = frame[f"log_p_{name}"] / frame["size"]
    frame["range_each"] = frame["best_each"] - frame["worst_each"]
    frame["gap_each"] = (frame["log_p_mixture"] - frame["log_p_mean"]) / frame["size"]
    varies = np.array([span.varies for span in found])
    whole, frame["var_best"] = frame["range_each"].where(varies), frame["var_best"].where(varies)
    # A span at a time, so that its random orders are drawn once.
    few = np.array(
        [[[span.sampled_range(count), span.extrapolated_range(count)] for count in SAMPLED] for span in found]
    )
    for place, count in enumerate(SAMPLED):
        frame[f"range_{count}_each"] = few[:, place, 0] / frame["size"]
        frame[f"missed_{count}"] = 1 - frame[f"range_{count}_each"] / whole
        frame[f"implied_{count}"] = few[:, place, 1] / frame["size"] / whole
    ranks = zip(found, frame["log_p_least_var"], strict=True)
    frame["least_var_rank"] = [
        float(span.share_below([log_p])[0][0]) if span.varies else np.nan for span, log_p in ranks
    ]
    return frame


def _squares(census: Census, spans: pd.DataFrame) -> pd.DataFrame:
    """Return number and sum of |Γ| by span, distance and number of revealed positions."""
    rows = []
    names = ["sample_id", "start", "positions"]
    for text, start, positions in spans[names].itertuples(index=False):
        count, mean = census.span(text, start).circulations(positions)
        for distance, revealed in np.argwhere(count > 0):
            number = count[distance, revealed]
            rows.append((text, start, distance + 1, revealed, number, number * mean[distance, revealed]))
    return pd.DataFrame(rows, columns=["sample_id", "start", "distance", "revealed", "squares", "total"])


_RULES = (
    Column("n_spans", "spans", 0),
    Column("mean_each", "log P/token"),
    Column("regret_each", "regret/token"),
    Column("gain_each", "above the mean order"),
    Column("of_best", "share of the best"),
    Column("share_worse", "share of orders below"),
    Column("var", "Var"),
    Column("var_excess", "Var − least Var"),
    Column("n_passes", "passes", 1),
)
_SPANS = (Column("n_spans", "spans", 0), Column("value", "value"))


@table(
    "rules among all orders of a span: regret, rank, Var; what all orders show",
    traces="census",
    suits=has_census,
)
def census(study: Study) -> list[Table]:
    """Return where each rule is among all orders, the spread of all orders, and local circulations."""
    if not has_census(study):
        empty: Cell = Estimate.undefined(NO_CENSUS)
        row = {"order": "(none)", **{column.name: empty for column in _RULES}}
        return [Table("census", "Rules among all orders of a span", ("order",), _RULES, (row,))]
    return [_rule_table(study), _span_table(study), _circulation_table(study)]


def _rule_table(study: Study) -> Table:
    frame = study.shared(census_frames).rules
    names = [column.name for column in _RULES[1:]]
    rows: list[dict[str, Cell]] = []
    for order in in_paper_order(frame["order"].unique()):
        part = frame[frame["order"] == order]
        cells = _estimates(study, part, names)
        rows.append({"order": order, "n_spans": len(part), **dict(zip(names, cells, strict=True))})
    notes = (
        "regret: log P of the best of all orders minus that of the rule, per token (nats).",
        "above the mean order: log P minus the mean over all orders, per token; a random order has 0.",
        "share of the best: how much of the way from the mean order to the best order the rule goes.",
        "share of orders below: share of all B! orders with a lower log P"
        + (
            "."
            if (error := frame["share_error"].max()) == 0
            else f"; standard error up to {error:.4f} per span."
        ),
    )
    return Table("census", "Rules among all orders of a span", ("order",), _RULES, tuple(rows), notes)


_QUANTITIES = (
    ("best_each", "log P of the best order (nats/token)"),
    ("mean_each", "mean log P of all orders (nats/token)"),
    ("worst_each", "log P of the worst order (nats/token)"),
    ("range_each", "range of log P over all orders (nats/token)"),
    ("sd_each", "sd of log P over random orders (nats/token)"),
    ("gap_each", "mixture of all orders − mean (nats/token)"),
    *((f"range_{count}_each", f"range that {count} random orders show (nats/token)") for count in SAMPLED),
    *((f"implied_{count}", f"range extrapolated from {count} random orders / range") for count in SAMPLED),
    ("var_least", "least Var over all orders (nats²)"),
    ("var_best", "Var of the likeliest order (nats²)"),
    ("var_greatest", "greatest Var that was found (nats²)"),
    ("var_greatest_bound", "Var that no order exceeds (nats²)"),
    *((f"recoverability_{sigma:g}", f"best log recoverability at σ = {sigma:g} (nats)") for sigma in SIGMAS),
    ("least_var_rank", "share of orders below the one of least Var"),
    ("share_first_choice", "share of the variance explained by the first position"),
    ("share_position", "share explained by the step of one position"),
    ("share_pair", "share explained by the order of one pair"),
    ("circulation", "mean |Γ| over all squares (nats)"),
)


def _span_table(study: Study) -> Table:
    frame = study.shared(census_frames).spans
    cells = _estimates(study, frame, [name for name, _ in _QUANTITIES])
    rows: list[dict[str, Cell]] = [
        {"quantity": text, "n_spans": len(frame), "value": cell}
        for (_, text), cell in zip(_QUANTITIES, cells, strict=True)
    ]
    sizes = ", ".join(str(size) for size in sorted(frame["size"].unique()))
    notes = (
        f"Spans of {sizes} positions; a span of B positions has B! orders.",
        "extrapolated: the expected range of all B! orders if log P of random orders were normal.",
    )
    return Table("census-spans", "All orders of a span", ("quantity",), _SPANS, tuple(rows), notes)


def _circulation_table(study: Study) -> Table:
    frame = study.shared(census_frames).circulation
    rows: list[dict[str, Cell]] = []
    for name in ("distance", "revealed"):
        for value in sorted(frame[name].unique()):
            part = frame[frame[name] == value].groupby(["run", "sample_id", "start", "text"], as_index=False)
            found = part[["squares", "total"]].sum()
            found["gamma"] = found["total"] / found["squares"]
            (cell,) = _estimates(study, found, ["gamma"])
            rows.append({"group": f"{name} {value}", "n_spans": len(found), "value": cell})
    notes = (
        "Γ = log p(i|R) + log p(j|R, i) − log p(j|R) − log p(i|R, j), for every R and pair of the span.",
    )
    title = "Local circulation |Γ| by distance and by number of revealed positions (nats)"
    return Table("census-circulation", title, ("group",), _SPANS, tuple(rows), notes)


def _estimates(study: Study, frame: pd.DataFrame, columns: Sequence[str]) -> list[Estimate]:
    """Return means over spans, texts resampled."""
    clusters = Clusters(frame["text"], study.options.resampling)
    return means(frame[list(columns)].to_numpy(np.float64), clusters, COHERENT)
