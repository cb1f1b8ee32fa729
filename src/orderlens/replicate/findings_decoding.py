"""The findings on greedy generation: near left-to-right content, the EOS cascade, the random tier."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.paired import wilson
from orderlens.analysis.study import Study
from orderlens.metrics.segments import FloatArray
from orderlens.replicate.compare import Paired, stack, wide_of
from orderlens.replicate.verdicts import OPEN, Number, Verdict, above, few_prompts, judge

CLOSE = 0.7
"""Rank correlation from which a path is called close to left-to-right."""
CASCADE = 3
"""Steps from which a run of EOS reveals from right to left counts as a cascade."""
CONFIDENCE_FIRST = ("max-prob", "top-margin")
STRUCTURED = ("forced-ar", *CONFIDENCE_FIRST)
_PAPER_RHO = {"max-prob": 0.891, "top-margin": 0.807}
_PAPER_EOS = {"forced-ar": 0.024, "max-prob": 0.079, "top-margin": 0.119}


def decoding_findings(study: Study, ending: Study) -> list[Verdict]:
    """Return the verdicts that need greedy generation; ``ending`` may hold texts that end early besides."""
    return [near_left_to_right(study), eos_cascade(ending, study), random_tier(study)]


def _paired(study: Study, frame: pd.DataFrame, column: str) -> Paired:
    return Paired.of(wide_of(frame, column), study.options.resampling)


def _mean(paired: Paired, order: str) -> Estimate:
    if not paired.has(order):
        return Estimate.undefined(f"order {order} was not run, or is undefined for every text")
    return paired.pick(order).of_means(lambda m: m)[0]


def near_left_to_right(study: Study) -> Verdict:
    """Do confidence-first orders reveal content nearly from left to right?"""
    frame = study.decoded
    rho = _paired(study, frame, "spearman_l2r_block0")
    cells = {order: _mean(rho, order) for order in CONFIDENCE_FIRST}
    ties, local = _paired(study, frame, "tied_rate"), _paired(study, frame, "frontier_adjacent")
    numbers = [Number(f"content Spearman with left-to-right, {o}", cells[o], _PAPER_RHO[o]) for o in cells]
    numbers.append(Number("the same, random (control)", _mean(rho, "random"), "about 0"))
    numbers += [
        Number(f"share of reveals next to known text, {order}", _mean(local, order))
        for order in (*CONFIDENCE_FIRST, "random")
    ]
    numbers.append(Number("share of steps with tied scores, max-prob", _mean(ties, "max-prob")))
    return Verdict(
        "near-left-to-right",
        "On content tokens of block 0, confidence-first orders are close to left-to-right.",
        "Section 4.3, Finding 1",
        judge(above(cell, CLOSE) for cell in cells.values()),
        f"both rank correlations lie above {CLOSE}.",
        tuple(numbers),
        ("Ties go to the left, so a high share of ties would make this true by construction.", *_few(study)),
    )


def _few(study: Study) -> tuple[str, ...]:
    return few_prompts(int(study.decoded["sample_id"].nunique()))


def eos_cascade(study: Study, continuations: Study | None = None) -> Verdict:
    """Do confidence-first orders seal the tail with EOS before the text is written?"""
    frame = study.decoded
    more = 0 if continuations is None else len(_ids(study) - _ids(continuations))
    besides = (f"{more} of the {len(_ids(study))} texts answer questions; the others continue a prompt.",)
    eos = _paired(study, frame, "eos_fraction")
    gaps = [_difference(eos, order, "forced-ar") for order in CONFIDENCE_FIRST]
    share = [_presealed(frame[frame["order"] == order]) for order in CONFIDENCE_FIRST]
    numbers = [Number(f"EOS fraction, {order}", _mean(eos, order), _PAPER_EOS[order]) for order in STRUCTURED]
    for order, gap, part in zip(CONFIDENCE_FIRST, gaps, share, strict=True):
        numbers.append(Number(f"EOS fraction, {order} − forced-ar", gap))
        numbers.append(Number(f"texts with a cascade of ≥ {CASCADE} EOS before more content, {order}", part))
    length = _paired(study, frame, "eos_cascade")
    numbers.append(Number("longest cascade, mean over texts, max-prob", _mean(length, "max-prob"), digits=2))
    nothing = not np.nansum(frame["eos_fraction"].to_numpy(np.float64))
    remarks = ("No text of this run holds an EOS token.",) if nothing else ()
    return Verdict(
        "eos-cascade",
        "Confidence-first orders commit EOS at the tail, right to left, before the text is finished.",
        "Section 4.3, Finding 2",
        OPEN if nothing else judge([*gaps, *share]),
        "both EOS fractions exceed forced-ar's, and both orders have texts with content after a cascade.",
        tuple(numbers),
        (*remarks, *(besides if more else ()), *_few(study)),
    )


def _ids(study: Study) -> set[str]:
    return set(study.decoded["sample_id"].astype(str))


def _presealed(part: pd.DataFrame) -> Estimate:
    """Return the share of texts in which content follows an EOS cascade, with its Wilson interval."""
    if not len(part):
        return Estimate.undefined("order was not run")
    sealed = (part["eos_cascade"] >= CASCADE) & part["eos_cascade_resume"].notna()
    return wilson(int(sealed.sum()), len(part))


def _difference(paired: Paired, a: str, b: str) -> Estimate:
    if not paired.has(a, b):
        return Estimate.undefined(f"{a} and {b} were not both run")
    return paired.pick(a, b).of_means(lambda m: stack(m[:, 0] - m[:, 1]))[0]


def random_tier(study: Study) -> Verdict:
    """Is random the high-variance, low-quality outlier of the generation table?"""
    frame = study.decoded
    var = _over_worst(_paired(study, frame, "content_var"), "mean")
    mean = _over_worst(_paired(study, _negated(frame, "content_mean"), "content_mean"), "mean")
    numbers = [
        Number("content Var, random − the highest of the structured orders", var, 0.639),
        Number("content mean log q, the lowest structured − random", mean, 0.833),
    ]
    checks = [var, mean]
    if study.external is not None:
        nll = frame.assign(ppl=np.exp(study.external["nll"].reindex(frame.index)))
        ratio = _over_worst(_paired(study, nll, "ppl"), "median", ratio=True)
        numbers.append(Number("log of median external PPL, random ÷ the highest structured", ratio, "0.43"))
        checks.append(ratio)
    return Verdict(
        "random-tier",
        "The structured orders form one tier; random is the outlier with higher Var and worse text.",
        "Section 4.3, Table 1",
        judge(checks),
        "random is worse than the worst structured order in content Var, content mean and perplexity.",
        tuple(numbers),
        _few(study),
    )


def _negated(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    return frame.assign(**{column: -frame[column]})


def _over_worst(paired: Paired, kind: str, *, ratio: bool = False) -> Estimate:
    """Return random's value minus the structured orders' highest (of logs when ``ratio``)."""
    known = [order for order in STRUCTURED if paired.has(order)]
    if not paired.has("random") or not known:
        return Estimate.undefined("random or every structured order is missing")
    used = paired.pick("random", *known)

    def statistic(m: FloatArray) -> FloatArray:
        values = np.log(m) if ratio else m
        return stack(values[:, 0] - values[:, 1:].max(axis=1))

    return (used.of_medians if kind == "median" else used.of_means)(statistic)[0]
