"""Follows two traces pass by pass while their canvases are equal, and judges the first difference.

Where the canvas is the same, two decoders that use the same model must read the same log-probabilities. So a
difference in log q is a difference of the model, and a difference in what is committed is one of the rule,
unless the candidates are as probable as each other (tie) or nearly so (rounding). Pure functions of traces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orderlens.analysis.diff_traces import Event, Trace
from orderlens.metrics.coherence import ROUNDING
from orderlens.rules.cards import base_name

Verdict = Literal["same", "tie", "rounding", "different-rule", "different-model", "missing"]
VERDICTS: tuple[Verdict, ...] = ("same", "tie", "rounding", "different-rule", "different-model", "missing")
_SCORES = {"entropy": "entropy", "top-margin": "margin", "max-prob": "max_logprob"}
"""Order → the number by which it compares positions; other orders are compared by log q."""
_STATIC = ("forced-ar", "reverse-ar", "random")
"""Orders that do not compare positions, so that they have neither ties nor rounding."""
_LIMIT = re.compile(r"(?:threshold|above|near)=(0?\.\d+|1|1\.0)")
"""The limit that a policy sets on p."""

Shared = tuple[Event, Event]
"""Events of both runs on the same canvas."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Two traces side by side.

    Attributes:
        verdict: what the first difference is.
        number: the first pass that differs, counted over passes that change the canvas; None without one.
        only_a: events of that pass that only the first trace has, by position.
        only_b: the same of the second trace.
        shared: per pass on an equal canvas, the events of both traces.
        gap: largest difference of log-probabilities at the same place and canvas (nats); NaN where no
            number is shared.
        margin: distance of the candidates at the first difference (nats); inf where their number differs.
    """

    verdict: Verdict
    number: int | None
    only_a: Sequence[Event]
    only_b: Sequence[Event]
    shared: Sequence[tuple[Mapping[int, Event], Mapping[int, Event]]]
    gap: float
    margin: float = math.nan


def walk(a: Trace, b: Trace, noise: float) -> Walk:
    """Compare two traces of one text.

    Args:
        a: the first trace.
        b: the second trace.
        noise: differences of log-probabilities up to here count as rounding (nats).
    """
    shared: list[tuple[Mapping[int, Event], Mapping[int, Event]]] = []
    gap, model_pass = math.nan, None
    for number in range(max(len(a.passes), len(b.passes))):
        left, right = (t.passes[number] if number < len(t.passes) else {} for t in (a, b))
        shared.append((left, right))
        found = pass_gap(left, right)
        gap = found if math.isnan(gap) else max(gap, found) if not math.isnan(found) else gap
        if found > noise and model_pass is None:
            model_pass = number
        only_a, only_b = _others(left, right), _others(right, left)
        if only_a or only_b:
            if model_pass is not None:
                return _model(shared, model_pass, gap, noise)
            return _choice(a, b, shared, number, (only_a, only_b), gap, noise)
    if model_pass is not None:
        return _model(shared, model_pass, gap, noise)
    return Walk("same", None, (), (), shared, gap)


def _others(mine: Mapping[int, Event], theirs: Mapping[int, Event]) -> list[Event]:
    return [event for place, event in mine.items() if place not in theirs or theirs[place].name != event.name]


def pass_gap(left: Mapping[int, Event], right: Mapping[int, Event]) -> float:
    """Return the largest difference of a log-probability that both passes state; NaN without one."""
    return max(
        (event_gap(left[place], right[place]) for place in left.keys() & right.keys()), default=math.nan
    )


def event_gap(a: Event, b: Event) -> float:
    """Return the largest difference of the numbers of one position; log q counts for equal tokens only."""
    names = ("logq", "max_logprob", "second_logprob") if a.token == b.token else ("max_logprob",)
    gaps = [_distance(getattr(a, name), getattr(b, name)) for name in names]
    return max((gap for gap in gaps if not math.isnan(gap)), default=0.0)


def _distance(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other)


def _model(
    shared: list[tuple[Mapping[int, Event], Mapping[int, Event]]], number: int, gap: float, noise: float
) -> Walk:
    """Return the verdict for log-probabilities that differ on an equal canvas."""
    left, right = shared[number]
    places = [place for place in left.keys() & right.keys() if event_gap(left[place], right[place]) > noise]
    first = min(places)
    return Walk("different-model", number, (left[first],), (right[first],), shared, gap)


def _choice(
    a: Trace,
    b: Trace,
    shared: list[tuple[Mapping[int, Event], Mapping[int, Event]]],
    number: int,
    only: tuple[list[Event], list[Event]],
    gap: float,
    noise: float,
) -> Walk:
    """Judge a pass in which the traces commit different events although the numbers agree."""
    margin = _margin(a, b, *only)
    verdict: Verdict = "different-rule"
    if _offset(*only, noise):
        verdict = "different-model"
    elif margin <= ROUNDING:
        verdict = "tie"
    elif margin <= noise:
        verdict = "rounding"
    return Walk(verdict, number, *only, shared, gap, margin)


def _margin(a: Trace, b: Trace, only_a: Sequence[Event], only_b: Sequence[Event]) -> float:
    """Return how far the candidates are from each other in the score that decides (nats)."""
    if any(event.kind == "remask" for event in (*only_a, *only_b)):
        return math.inf
    heads = {base_name(trace.key["order"]) for trace in (a, b)}
    if heads & set(_STATIC) and {event.position for event in only_a} != {event.position for event in only_b}:
        return math.inf
    if len(only_a) != len(only_b):
        return max((_from_limit(a, b, event) for event in (*only_a, *only_b)), default=math.inf)
    places = {event.position for event in only_b}
    same = {event.position for event in only_a} & places
    other = {event.position: event for event in only_b}
    gaps = [_distance(event.logq, other[event.position].logq) for event in only_a if event.position in same]
    score = _SCORES.get(next(iter(heads)), "logq") if len(heads) == 1 else "logq"
    left, right = (
        sorted(getattr(event, score) for event in events if event.position not in same)
        for events in (only_a, only_b)
    )
    gaps += [_distance(one, two) for one, two in zip(left, right, strict=True)]
    return math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps, default=math.inf)


def _from_limit(a: Trace, b: Trace, event: Event) -> float:
    """Return the distance of log p from the limit that a policy sets; inf where neither sets one."""
    limits = [_LIMIT.search(trace.key["order"]) for trace in (a, b)]
    found = [abs(event.logq - math.log(float(limit[1]))) for limit in limits if limit and float(limit[1]) > 0]
    return min(found, default=math.inf)


def _offset(only_a: Sequence[Event], only_b: Sequence[Event], noise: float) -> int:
    """Return +1 or −1 where b's events are a's, one position to the right or left; 0 otherwise.

    Positions that tie for the best score, and certain ones, say nothing about an offset.
    """
    right = {event.position: event for event in only_b}
    for step in (1, -1):
        pairs = [(event, right.get(event.position + step)) for event in only_a]
        if pairs and all(other is not None and is_same_row(event, other, noise) for event, other in pairs):
            return step
    return 0


def is_same_row(a: Event, b: Event, noise: float) -> bool:
    """Return whether two events read the same row of a network: token and all numbers agree."""
    if a.token != b.token or max(a.n_tied, b.n_tied) > 1 or math.isnan(a.entropy + b.entropy):
        return False
    names = ("logq", "max_logprob", "second_logprob", "entropy")
    close = all(_distance(getattr(a, name), getattr(b, name)) <= noise for name in names)
    return close and a.entropy > 10 * noise


def offset_of(found: Walk, noise: float) -> int:
    """Return the offset at which the traces read the same rows on an equal canvas: +1, −1, or 0 for none."""
    for left, right in found.shared:
        others = _others(left, right), _others(right, left)
        step = _offset(*others, noise) or _row_offset(list(left.values()), list(right.values()), noise)
        if step:
            return step
    return 0


def _row_offset(left: Sequence[Event], right: Sequence[Event], noise: float) -> int:
    """Return the offset at which all neighbouring rows of one pass agree in what does not need the token."""
    theirs = {event.position: event for event in right}
    for step in (1, -1):
        rows = [(event, theirs[event.position + step]) for event in left if event.position + step in theirs]
        known = [(x, y) for x, y in rows if not math.isnan(x.entropy + y.entropy)]
        same = [
            _distance(x.entropy, y.entropy) <= noise and _distance(x.max_logprob, y.max_logprob) <= noise
            for x, y in known
        ]
        if len(same) > 1 and all(same) and any(x.entropy > 10 * noise for x, _ in known):
            return step
    return 0
