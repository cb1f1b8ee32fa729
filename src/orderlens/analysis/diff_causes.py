"""The settings that explain why two runs decode differently, from specs and from patterns in the traces.

A setting counts as an explanation where the runs state different values, or where the traces show its mark:
the same row of the network one position apart (shift), one offset for all tokens of a position (mask in the
softmax), a constant ratio of margins (temperature), a block grid that only one run keeps (block anchor), or
differences that begin with an end of text (EOS handling). Does not depend on models or files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from orderlens.analysis.diff_traces import Event, Trace
from orderlens.analysis.diff_walk import Walk, offset_of


@dataclass(frozen=True, slots=True)
class Explanation:
    """A setting that explains differences: its name, what differs, and where it was found (spec, traces)."""

    setting: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Two traces of one text and how they differ."""

    a: Trace
    b: Trace
    walk: Walk


_SPEC = {
    "model": ("model", "name"),
    "weights": ("model", "digest"),
    "precision": ("model", "precision"),
    "precision of the logits": ("recorded", "precision"),
    "shift": ("recorded", "shift"),
    "block size": ("block_size",),
    "block anchor": ("anchor",),
    "EOS handling": ("stop_at_eos",),
    "EOS tokens": ("model", "eos_ids"),
    "temperature": ("temperatures",),
    "seed of the draws": ("seed",),
    "length": ("max_new_tokens",),
    "chat template": ("chat",),
}
"""Setting → where a spec states it."""
RECORDED = "recorded"
"""Default label of ``ol.record``, which names no rule."""
_OF_MODEL = ("model", "weights", "precision", "precision of the logits")
_RATIO = 0.01
"""Largest relative spread of a constant ratio of margins."""


def explain(
    spec_a: Mapping[str, Any], spec_b: Mapping[str, Any], pairs: Sequence[Compared], noise: float
) -> list[Explanation]:
    """Return the settings that explain the differences, those seen in the traces first."""
    differing = [pair for pair in pairs if pair.walk.verdict != "same"]
    if not differing:
        return []
    found = [item for item in _from_traces(differing, noise) if item is not None]
    found = [*_from_notes(spec_a, spec_b), *found]
    is_model = any(pair.walk.verdict in ("different-model", "rounding") for pair in differing)
    stated = [item for item in _from_specs(spec_a, spec_b) if is_model or item.setting not in _OF_MODEL]
    seen = {item.setting for item in found}
    return [*found, *(item for item in stated if item.setting not in seen)]


def _from_specs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Explanation]:
    for setting, path in _SPEC.items():
        left, right = _look(a, path), _look(b, path)
        if left is not None and right is not None and left != right:
            yield Explanation(setting, f"{_short(left)} in A, {_short(right)} in B", "spec")


def _from_notes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Explanation]:
    """Repeat what a recording noticed about the rows that its decoder reads."""
    for name, spec in (("A", a), ("B", b)):
        for note in _look(spec, ("recorded", "notes")) or ():
            if "did you mean shift=" in note:
                yield Explanation("shift", f"recording of {name}: {note}", "spec")


def _look(spec: Any, path: Sequence[str]) -> Any:
    for name in path:
        spec = spec.get(name) if isinstance(spec, Mapping) else None
    return spec


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"


def _from_traces(pairs: Sequence[Compared], noise: float) -> Iterator[Explanation | None]:
    model = [pair for pair in pairs if pair.walk.verdict == "different-model"]
    rule = [pair for pair in pairs if pair.walk.verdict == "different-rule"]
    if model:
        yield _shift(pairs, noise) or _mask(model, noise) or _tempered(model, noise)
    if rule:
        ends = _eos(rule)
        found = [ends, None if ends else _blocks(rule), _drawn(rule), _per_pass(rule), _orders(rule)]
        yield from found
        yield None if any(found) else _preferred(rule)


def _shift(pairs: Sequence[Compared], noise: float) -> Explanation | None:
    """Find rows that are one position apart in at least half of the pairs, and never the other way."""
    steps = [offset_of(pair.walk, noise) for pair in pairs]
    if 2 * steps.count(0) > len(steps):
        return None
    if -1 not in steps:
        return Explanation("shift", "row i of A is row i + 1 of B: B shifts its logits, A does not", "traces")
    if 1 not in steps:
        return Explanation("shift", "row i of B is row i + 1 of A: A shifts its logits, B does not", "traces")
    return None


def _rows(pairs: Sequence[Compared], noise: float) -> list[tuple[Event, Event]]:
    """Return events of equal tokens on an equal canvas whose numbers are known and differ."""
    rows = [
        (left[place], right[place])
        for pair in pairs
        for left, right in pair.walk.shared
        for place in left.keys() & right.keys()
        if left[place].name == right[place].name
    ]
    known = [(x, y) for x, y in rows if all(map(math.isfinite, (x.margin, y.margin, x.logq, y.logq)))]
    return [(x, y) for x, y in known if abs(x.logq - y.logq) > noise or abs(x.margin - y.margin) > noise]


def _mask(pairs: Sequence[Compared], noise: float) -> Explanation | None:
    """Find one offset per position for all its tokens: another normaliser."""
    rows = _rows(pairs, noise)
    offsets = [x.logq - y.logq for x, y in rows]
    if not rows or (min(offsets) < 0 < max(offsets)) or abs(median(offsets)) <= 2 * noise:
        return None
    for (x, y), offset in zip(rows, offsets, strict=True):
        low, high = (x, y) if offset < 0 else (y, x)
        if not _has_more_tokens(low, high, abs(offset), 2 * noise):
            return None
    middle = abs(median(offsets))
    lower = "A" if offsets[0] < 0 else "B"
    text = (
        f"log q is lower in {lower} by one offset per position (median {middle:.3g} nats, log(1 − p) for "
        f"p = {-math.expm1(-middle):.3g}): the softmax of {lower} includes the mask or other excluded tokens"
    )
    return Explanation("mask in the softmax", text, "traces")


def _has_more_tokens(low: Event, high: Event, offset: float, tolerance: float) -> bool:
    """Return whether the top two of ``low`` are those of ``high`` less an offset, or the one added token."""
    shifted = [high.max_logprob - offset, high.second_logprob - offset]
    added = math.log(-math.expm1(-offset)) if offset > 0 else -math.inf
    found = low.max_logprob, low.second_logprob
    return any(
        all(abs(x - y) <= tolerance for x, y in zip(found, sorted(expected)[:-3:-1], strict=True))
        for expected in (shifted, [*shifted, added])
    )


def _tempered(pairs: Sequence[Compared], noise: float) -> Explanation | None:
    """Find a constant ratio of the margins between the two most probable tokens."""
    rows = [(x, y) for x, y in _rows(pairs, noise) if min(x.margin, y.margin) > 20 * noise]
    ratios = [y.margin / x.margin for x, y in rows]
    if len(ratios) < 2:
        return None
    middle = median(ratios)
    spread = max(abs(ratio / middle - 1) for ratio in ratios)
    if spread > _RATIO or abs(middle - 1) <= 2 * _RATIO:
        return None
    text = f"log q of A is that of B at temperature {middle:.3g}: one of them stores tempered log q"
    return Explanation("temperature", text, "traces")


def _drawn(pairs: Sequence[Compared]) -> Explanation | None:
    """Compare the temperatures of the traces, or else the shares of most probable tokens."""
    told = {(pair.a.key["temperature"], pair.b.key["temperature"]) for pair in pairs}
    stated = [(x, y) for x, y in told if x is not None and y is not None and x != y]
    if stated:
        (left, right), *_ = sorted(stated)
        return Explanation("temperature", f"{left:g} in A, {right:g} in B", "traces")
    shares = [_argmax_share([getattr(pair, side) for pair in pairs]) for side in ("a", "b")]
    if max(shares) == 1.0 and min(shares) < 0.99:
        text = f"most probable tokens are {shares[0]:.0%} of the reveals of A and {shares[1]:.0%} of B"
        return Explanation("temperature", text, "traces")
    return None


def _argmax_share(traces: Sequence[Trace]) -> float:
    events = [e for trace in traces for e in trace.events if math.isfinite(e.max_logprob + e.logq)]
    hits = sum(event.logq >= event.max_logprob - 1e-6 for event in events)
    return hits / len(events) if events else math.nan


def _eos(pairs: Sequence[Compared]) -> Explanation | None:
    """Find differences that begin with an end of text, or lie after one."""
    after = [_is_after_end(pair) for pair in pairs]
    if all(after):
        return Explanation("EOS handling", "all differences are after the first end of text", "traces")
    ends = [_ends(pair.walk) for pair in pairs]
    if all(ends) and len(set(ends)) == 1:
        text = f"where the runs first differ, {ends[0]} reveals an end of text and the other run does not"
        return Explanation("EOS handling", text, "traces")
    counts = [sum(any(e.is_eos for e in getattr(p, side).events) for p in pairs) for side in ("a", "b")]
    if len(pairs) > 2 and min(counts) == 0 and 2 * max(counts) > len(pairs):
        name = "A" if counts[0] else "B"
        text = f"{name} reveals an end of text in {max(counts)} of {len(pairs)} texts, the other run in none"
        return Explanation("EOS handling", text, "traces")
    return None


def _is_after_end(pair: Compared) -> bool:
    end = min(pair.a.first_eos, pair.b.first_eos)
    left, right = pair.a.final, pair.b.final
    n = max(len(left), len(right))
    first = [*pair.walk.only_a, *pair.walk.only_b]
    same = all(
        place in left and place in right and left[place].token == right[place].token
        for place in range(min(end + 1, n))
    )
    return end < n and same and all(event.position > end for event in first)


def _ends(found: Walk) -> str:
    left, right = (any(event.is_eos for event in events) for events in (found.only_a, found.only_b))
    return "" if left == right else "A" if left else "B"


def _blocks(pairs: Sequence[Compared]) -> Explanation | None:
    """Find a block grid that one run keeps and the other does not."""
    for pair in pairs:
        for name, one, other in (("A", pair.a, pair.b), ("B", pair.b, pair.a)):
            edges = _edges(one)
            if edges and not edges <= _cuts(other):
                return _grid(name, edges, other)
    return _unstated_blocks(pairs)


def _unstated_blocks(pairs: Sequence[Compared]) -> Explanation | None:
    """Compare the grids of blocks that all texts of a run keep, where neither run states its blocks."""
    sides = [[getattr(pair, side) for pair in pairs] for side in ("a", "b")]
    if len(pairs) < 2 or any(_edges(trace) for traces in sides for trace in traces):
        return None
    a, b = (_kept_grid(traces) for traces in sides)
    if a and b and a != b:
        text = f"blocks of {a[0]} begin at offset {a[1]} in A, blocks of {b[0]} at offset {b[1]} in B"
        return Explanation("block anchor" if a[0] == b[0] else "block size", text, "traces")
    for name, grid, other in (("A", a, b), ("B", b, a)):
        if grid and not other:
            text = f"{name} decodes in blocks of {grid[0]}, the other run does not"
            return Explanation("block size", text, "traces")
    return None


def _kept_grid(traces: Sequence[Trace]) -> tuple[int, int] | None:
    """Return size and first edge of the finest grid of blocks that all traces keep, if there is one.

    A single edge may be chance: it counts with four traces or more, in the third quarter of the text.
    """
    cuts, n = set.intersection(*map(_cuts, traces)), max(len(trace.last_pass) for trace in traces)
    for size in range(1, n):
        for first in range(1, size + 1):
            edges = set(range(first, n, size))
            is_one = len(edges) == 1 and (len(traces) < 4 or not n <= 2 * first <= 1.5 * n)
            if edges <= cuts and not is_one:
                return (size, first) if size > 1 else None
    return None


def _edges(trace: Trace) -> set[int]:
    """Return where blocks begin, without the first one."""
    places = sorted(trace.blocks)
    return {q for p, q in pairwise(places) if trace.blocks[p] != trace.blocks[q]}


def _cuts(trace: Trace) -> set[int]:
    """Return the positions before which everything is finished before anything after them is revealed."""
    last = trace.last_pass
    first = np.full(len(last), len(trace.passes))
    for number, events in reversed(list(enumerate(trace.passes))):
        first[list(events)] = number
    if len(last) < 2:
        return set()
    done = np.maximum.accumulate(last)[:-1]
    begun = np.minimum.accumulate(first[::-1])[::-1][1:]
    return set((np.flatnonzero(done < begun) + 1).tolist())


def _grid(name: str, edges: set[int], other: Trace) -> Explanation:
    """Say how the blocks of the other run differ from ``edges``."""
    size = min(np.diff(sorted(edges)).tolist(), default=max(*edges, len(other.last_pass) - max(edges)))
    theirs = "B" if name == "A" else "A"
    own, cuts, n = _edges(other), _cuts(other), len(other.last_pass)
    for offset in range(size):
        grid = set(range(offset or size, n, size))
        if grid and not grid <= edges and (grid == own or (not own and grid <= cuts)):
            text = f"blocks of {size} begin at offset {min(edges)} in {name} and {min(grid)} in {theirs}"
            return Explanation("block anchor", text, "traces")
    what = f"at {sorted(own)[:3]}" if own else "nowhere: it decodes the text as one block"
    text = f"blocks begin at {sorted(edges)[:3]} in {name}, in {theirs} {what}"
    return Explanation("block size", text, "traces")


def _per_pass(pairs: Sequence[Compared]) -> Explanation | None:
    """Compare how many tokens the passes reveal, and the smallest probability in a set of several."""
    counts = [tokens_per_pass([getattr(pair, side) for pair in pairs]) for side in ("a", "b")]
    if abs(counts[0] - counts[1]) < 1e-9:
        return None
    text = f"{counts[0]:.3g} in A, {counts[1]:.3g} in B"
    least = [_least([getattr(pair, side) for pair in pairs]) for side in ("a", "b")]
    stated = [f"{p:.3g} in {name}" for p, name in zip(least, "AB", strict=True) if p is not None]
    if stated:
        text += f"; least probability in a set of several tokens: {', '.join(stated)}"
    return Explanation("tokens per pass", text, "traces")


def tokens_per_pass(traces: Sequence[Trace]) -> float:
    """Return the mean number of tokens revealed per pass that changes the canvas; NaN without passes."""
    passes = sum(len(trace.passes) for trace in traces)
    return sum(trace.n_reveals for trace in traces) / passes if passes else math.nan


def _least(traces: Sequence[Trace]) -> float | None:
    passes = ([e for e in p.values() if e.kind == "reveal"] for trace in traces for p in trace.passes)
    values = [e.logq for events in passes if len(events) > 1 for e in events if not math.isnan(e.logq)]
    return math.exp(min(values)) if values else None


def _orders(pairs: Sequence[Compared]) -> Explanation | None:
    """Name the orders where they differ."""
    names = {(pair.a.order, pair.b.order) for pair in pairs if pair.a.order != pair.b.order}
    names = {both for both in names if RECORDED not in both}
    if not names:
        return None
    left, right = sorted(names)[0]
    return Explanation("order", f"{left} in A, {right} in B", "traces")


def _preferred(pairs: Sequence[Compared]) -> Explanation | None:
    """Compare the probabilities of what both take first."""
    higher = [
        _best(pair.walk.only_a) > _best(pair.walk.only_b)
        for pair in pairs
        if pair.walk.only_a and pair.walk.only_b
    ]
    if not higher:
        return None
    text = f"A takes the more probable candidate in {sum(higher)} of {len(higher)} first differences"
    return Explanation("order", text, "traces")


def _best(events: Sequence[Event]) -> float:
    return max((event.logq for event in events if not math.isnan(event.logq)), default=-math.inf)
