"""Two summaries of parallel decoding: accuracy under parallelism (AUP) and the speed of light.

AUP is the score of the public diffusion-LLM board (hao-ai-lab/d3LLM). The speed of light of a text is the
largest number of tokens per pass at which it is still the text that one token per pass writes. Prompts are
resampled.

Shape letters: B resamples, C prompts, O policies.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd

from orderlens.analysis.frontier import ACCURACY, Measure, has_ladder, measures
from orderlens.analysis.study import NOT_GENERATED, NOT_GRADED, Study
from orderlens.analysis.table import Cell, Column, Table, table
from orderlens.analysis.traces import TRACE, all_passes, trace_rows
from orderlens.metrics.estimate import Clusters, Estimate, ratios_of_sums
from orderlens.metrics.segments import FloatArray, divide

ALPHA = 3.0
"""Penalty for accuracy below the best, as on the public board."""
CUT_OFF = 5.0
"""Points whose accuracy is more than this below the first point's are left out (percentage points)."""

DRAWN = "at temperature > 0 every policy draws its own tokens"
ONE_WAY = "no order was run both with one token per pass and with a faster policy"


def aup(speed: FloatArray, accuracy: FloatArray, best: float) -> float:
    """Return the accuracy under parallelism of one family of settings.

    AUP = ρ₁ y₁ + ½ Σ (ρ_i − ρ_{i−1}) (y_i W(y_i) + y_{i−1} W(y_{i−1})), W(y) = min(e^{−3 (1 − y/best)}, 1),
    over the points with y_i ≥ y₁ − 5, by increasing ρ.

    Args:
        speed: ρ, tokens per pass of each setting.
        accuracy: y, in per cent.
        best: the highest accuracy on the task, in per cent.
    """
    by = np.argsort(speed, kind="stable")
    rho, y = speed[by], accuracy[by]
    if not (len(y) and best > 0 and np.isfinite(rho).all()):
        return math.nan
    kept = y >= y[0] - CUT_OFF
    rho, y = rho[kept], y[kept]
    weighted = y * np.minimum(np.exp(-ALPHA * (1 - y / best)), 1.0)
    return float(rho[0] * y[0] + 0.5 * np.diff(rho) @ (weighted[1:] + weighted[:-1]))


def families(orders: tuple[str, ...]) -> dict[str, list[str]]:
    """Return policies that differ in the values of their rules only, each with its order alone if present."""
    found: dict[str, list[str]] = {}
    for order in orders:
        base, plus, rules = order.partition("+")
        if plus:
            name = f"{base}+{re.sub('=[^+]*', '', rules)}"
            found.setdefault(name, [base] if base in orders else []).append(order)
    return found


def _aup(measure: Measure, chosen: list[str], study: Study) -> Estimate:
    places = [measure.orders.index(order) for order in chosen]
    clusters = Clusters(list(measure.prompts), study.options.resampling)

    def score(counts_BC: FloatArray) -> FloatArray:
        y_BO = divide(counts_BC @ measure.value_CO, counts_BC @ measure.weight_CO)
        rho_BO = divide(counts_BC @ measure.tokens_CO, counts_BC @ measure.passes_CO)
        rows = zip(rho_BO[:, places], y_BO[:, places], y_BO.max(axis=1), strict=True)
        return np.array([[aup(*row)] for row in rows])

    n = len(measure.prompts)
    value = score(np.ones((1, n)))[0]
    return clusters.estimates(value, score, n, measure.n_missing, "no answer is correct")[0]


_SPEED = (
    Column("speed_of_light", "speed of light (tokens/pass)", 2),
    Column("share_faster", "texts with a faster way"),
    Column("n", "texts"),
)


def texts_at_light_speed(study: Study) -> pd.DataFrame:
    """Return per text of an order alone its tokens per pass, and the largest at which the text is the same.

    A text ends at its first EOS. Texts above temperature 0 are left out, because every policy draws its own.

    Columns ``prompt, order, seed, sample_seed, own, light``; only orders with a faster policy.
    """
    frame = study.decoded[~(study.decoded["temperature"] > 0)].reset_index(drop=True)
    tokens = trace_rows(study.run, "outputs", "token_ids").drop_duplicates(TRACE)
    joined = frame.merge(tokens, on=TRACE, how="inner")
    ends = joined["n_text"].astype(int)  # tokens after an EOS are not part of the text
    joined["text"] = [
        tuple(ids[:end]) if ids is not None else ()
        for ids, end in zip(joined["token_ids"], ends, strict=True)
    ]
    joined["speed"] = (joined["n"] + joined["n_overflow"]) / all_passes(joined)
    joined["base"] = [str(order).partition("+")[0] for order in joined["order"]]
    alone = joined[joined["order"] == joined["base"]]
    others = joined[joined["order"] != joined["base"]]
    keys = ["prompt", "base", "seed", "sample_seed"]
    pairs = alone.merge(others[[*keys, "text", "speed"]], on=keys, suffixes=("", "_other"))
    same = pairs["text"] == pairs["text_other"]
    pairs["light"] = np.maximum(pairs["speed_other"].where(same, 0.0), pairs["speed"])
    ways = pairs.groupby(keys, sort=False, dropna=False)
    best = ways.agg(own=("speed", "first"), light=("light", "max"))
    return best.reset_index().rename(columns={"base": "order"})


def _light(study: Study, part: pd.DataFrame) -> dict[str, Cell]:
    clusters = Clusters(part["prompt"], study.options.resampling)
    faster = (part["light"] > part["own"] * (1 + 1e-9)).to_numpy(np.float64)
    sums = clusters.sums(np.column_stack([part["light"].to_numpy(np.float64), faster, np.ones(len(part))]))
    light, share = ratios_of_sums(clusters, sums, len(part))
    return {"speed_of_light": light, "share_faster": share, "n": len(part)}


def _why_dark(study: Study) -> str:
    """Return why no text has a speed of light."""
    if not len(study.decoded):
        return NOT_GENERATED
    return DRAWN if (study.decoded["temperature"] > 0).all() else ONE_WAY


@table("accuracy under parallelism, and the speed of light", needs=("text",), suits=has_ladder)
def speed(study: Study) -> list[Table]:
    """Return AUP per task and family of policies, and the speed of light per order."""
    scores: list[dict[str, Cell]] = [
        {"measure": item.name, "family": name, "aup": _aup(item, chosen, study), "settings": len(chosen)}
        for item in measures(study)
        if item.name.startswith(ACCURACY)
        for name, chosen in families(item.orders).items()
    ]
    found = texts_at_light_speed(study) if len(study.decoded) else pd.DataFrame({"order": []})
    lights = [
        {"order": order, **_light(study, found[found["order"] == order])} for order in study.orders(found)
    ]
    nothing: dict[str, Cell] = {"measure": "(none)", "family": "(none)", "settings": 0}
    none: dict[str, Cell] = {"order": "(none)", "n": 0}
    missing = Estimate.undefined(_why_dark(study))
    notes = (
        "AUP as on the public board of d3LLM: penalty 3; points more than 5 below the first are left out.",
        "Its best accuracy is that of all systems on the task; here it is the best policy of these runs.",
        "A family is one policy with several values, and its order with one token per pass.",
    )
    light_notes = (
        "speed of light: the most tokens per pass at which a policy of the same order wrote the same text",
        "as one token per pass, averaged over texts. It depends on which policies were run.",
    )
    columns = (Column("aup", "AUP", 1), Column("settings", "settings"))
    empty = (nothing | {"aup": Estimate.undefined(NOT_GRADED)},)
    dark = (none | {"speed_of_light": missing, "share_faster": missing},)
    return [
        Table(
            "speed",
            "Accuracy under parallelism",
            ("measure", "family"),
            columns,
            tuple(scores) or empty,
            notes,
        ),
        Table(
            "speed-of-light", "Fastest identical text", ("order",), _SPEED, tuple(lights) or dark, light_notes
        ),
    ]
