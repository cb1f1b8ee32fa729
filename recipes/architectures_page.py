"""The page of `architectures.py`: how much the order matters to each model, with intervals over texts.

Reads the model folders and runs that `train` and `score` wrote; needs pandas and scipy, but not torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import orderlens as ol
from orderlens.analysis import Study
from orderlens.analysis.frames import Paired
from orderlens.analysis.rendering import render
from orderlens.analysis.table import Column, Table
from orderlens.analysis.tables_census import census_frames
from orderlens.metrics.coherence import order_range
from orderlens.metrics.estimate import Clusters, Estimate, Resampling, means
from orderlens.rules.cards import in_paper_order

RESAMPLING = Resampling(reps=2000)
CENSUS_SPANS = (
    Column("range_each", "range (nats/token)"), Column("sd_each", "sd (nats/token)"),
    Column("var_least", "least Var (nats²)"), Column("least_var_rank", "orders below that of least Var"),
    Column("share_first_choice", "explained by the first position"),
    Column("share_pair", "explained by one pair"), Column("circulation", "mean |Γ| (nats)"),
)  # fmt: skip
CENSUS_RULES = (
    Column("share_worse", "orders below"), Column("of_best", "share of the way from mean to best"),
    Column("regret_each", "regret (nats/token)"), Column("var", "Var (nats²)"),
)  # fmt: skip
REFERENCE, BASE = "forced-ar", "block-causal"
GAPS = ("reverse-ar", "random", "max-prob", "top-margin")


def write_page(work: Path) -> str:
    """Return the whole page as Markdown."""
    frame, floors = read_scores(work)
    means, variances = (wide(frame, column) for column in ("mean", "var"))
    tables = [
        models_table(work),
        orders_table(means, variances),
        range_table(means, floors),
        contrast_table(means, "gaps", "Gap between an order and left to right, compared with block-causal"),
        contrast_table(variances, "var-gaps", "The same for Var(log q) (nats²)"),
        *census_tables(work),
    ]
    return render(tables, "markdown")


def read_scores(work: Path) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return one row per text, model and order (seeds averaged), and each model's noise floor."""
    frames, floors = [], {}
    for folder in sorted((work / "runs").iterdir()):
        frames.append(ol.open_run(folder).samples().to_pandas().assign(model=folder.name))
        noise = ol.open_run(work / "noise" / folder.name).table("noise").to_pandas()
        floors[folder.name] = ol.metrics.noise_floor(
            noise["log_prob"], noise["log_prob_perturbed"], noise["n"], noise["perturbation"].tolist()
        ).headline
    frames += [
        pd.DataFrame(json.loads(path.read_text())).assign(model=path.parent.name)
        for path in sorted((work / "models").glob("*/scores.json"))
    ]
    columns = ["model", "order", "sample_id"]
    return pd.concat(frames).groupby(columns, sort=False)[["mean", "var"]].mean().reset_index(), floors


def wide(frame: pd.DataFrame, column: str) -> Paired:
    """Return ``column`` with one row per text and one column per model and order."""
    named = frame.assign(what=frame["model"] + "@" + frame["order"])
    pivoted = named.pivot(index="sample_id", columns="what", values=column)
    return Paired.of(pivoted[list(dict.fromkeys(named["what"]))], RESAMPLING)


def models_table(work: Path) -> Table:
    """Return the table of trained models."""
    rows = []
    for path in sorted((work / "models").glob("*/config.json")):
        notes: dict[str, Any] = json.loads(path.read_text())["notes"]
        numbers = {name: notes[name] for name in ("parameters", "steps", "tokens")}
        rows.append(
            {"model": path.parent.name, **numbers}
            | {name: Estimate(notes[name]) for name in ("seconds", "heldout_loss")}
        )
    columns = (
        Column("parameters", "parameters"), Column("steps", "steps"), Column("tokens", "tokens"),
        Column("seconds", "seconds", 0), Column("heldout_loss", "held-out loss (nats/token)"),
    )  # fmt: skip
    note = "Held-out loss: the any-order bound (block-causal: inside blocks), or left to right (causal)."
    return Table("models", "Trained models", ("model",), columns, tuple(rows), (note,))


def orders_table(means: Paired, variances: Paired) -> Table:
    """Return mean and Var of log q for every model and order."""
    rows = [
        {"model": model, "order": order}
        | {"mean": means.mean(name), "gap": means.difference(name, f"{model}@{REFERENCE}")}
        | {"var": variances.mean(name), "var_gap": variances.difference(name, f"{model}@{REFERENCE}")}
        for name in means.columns
        for model, order in [name.split("@")]
    ]
    columns = (
        Column("mean", "log P/n (nats/token)"), Column("gap", f"− {REFERENCE}", 4),
        Column("var", "Var (nats²)"), Column("var_gap", f"Var − {REFERENCE}"),
    )  # fmt: skip
    return Table("orders", "Fixed texts under every order", ("model", "order"), columns, tuple(rows))


def range_table(means: Paired, floors: dict[str, float]) -> Table:
    """Return the range of each model's orders, compared with the noise floor."""
    rows = []
    for model, floor in floors.items():
        names = [name for name in means.columns if name.split("@")[0] == model]
        found = order_range(means.pick(*names).values_CK, RESAMPLING)
        times = Estimate(found.estimate.value / floor) if floor else Estimate.undefined("no noise")
        rows.append(
            {"model": model, "range": found.estimate, "p": Estimate(found.p), "floor": Estimate(floor)}
            | {"times": times}
        )
    columns = (
        Column("range", "range over orders (nats/token)", 4), Column("p", "p (orders agree)", 4),
        Column("floor", "noise floor", 6), Column("times", "× noise floor", 0),
    )  # fmt: skip
    note = "Range: max − min over orders of the mean, corrected for noise; noise floor: the largest mean "
    note += "change of log P/n under perturbations that should change nothing."
    return Table("ranges", "Range over orders", ("model",), columns, tuple(rows), (note,))


def contrast_table(values: Paired, name: str, title: str) -> Table:
    """Return each model's gaps to its left-to-right order, minus those of the block-causal model."""
    models = list(dict.fromkeys(column.split("@")[0] for column in values.columns))
    rows = []
    for model in models:
        if not values.has(*(f"{model}@{order}" for order in (REFERENCE, *GAPS))):
            continue
        for order in GAPS:
            ours = (f"{model}@{order}", f"{model}@{REFERENCE}")
            theirs = (f"{BASE}@{order}", f"{BASE}@{REFERENCE}")
            rows.append(
                {"model": model, "order": order, "gap": values.difference(*ours)}
                | {"contrast": _contrast(values, [*ours, *theirs]) if model != BASE else None}
            )
    columns = (Column("gap", f"− {REFERENCE}", 4), Column("contrast", f"minus that of {BASE}", 4))
    note = "block-causal-again has another seed: its contrast shows the effect of training randomness."
    return Table(name, title, ("model", "order"), columns, tuple(rows), (note,))


def census_tables(work: Path) -> list[Table]:
    """Return what all orders of a span show under each model; nothing before stage ``census``."""
    found = {folder.name: census_frames(Study.open(folder)) for folder in sorted((work / "census").glob("*"))}
    if not found:
        return []
    spans = [
        {"model": model} | _means(frames.spans, [column.name for column in CENSUS_SPANS])
        for model, frames in found.items()
    ]
    rules = [
        {"model": model, "order": order} | _means(part, [column.name for column in CENSUS_RULES])
        for model, frames in found.items()
        for order in in_paper_order(frames.rules["order"].unique())
        for part in [frames.rules[frames.rules["order"] == order]]
    ]
    note = "Below: share of all orders with a lower log P; a random order has 0.5."
    return [
        Table("census-spans", "All orders of a span", ("model",), CENSUS_SPANS, tuple(spans)),
        Table("census", "Rules among all orders", ("model", "order"), CENSUS_RULES, tuple(rules), (note,)),
    ]


def _means(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, Estimate]:
    """Return the mean of each column, texts resampled."""
    found = means(frame[list(columns)].to_numpy(np.float64), Clusters(frame["text"], RESAMPLING))
    return dict(zip(columns, found, strict=True))


def _contrast(values: Paired, names: Sequence[str]) -> Estimate:
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    found = values.pick(*names).of_means(lambda means: (means * signs).sum(axis=1, keepdims=True))[0]
    return found if math.isfinite(found.value) else Estimate.undefined("not all were scored")
