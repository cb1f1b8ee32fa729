"""All texts that the order alone can produce from a prompt at temperature 0.

A state is a set of revealed positions and their tokens. Revealing another position commits its most
probable token, so states form a graph; equal states that different orders reach are evaluated once. Every
path from the empty state to a full one is an order, so counting paths gives the share of orders that lead
to each text. Positions after the span stay masked. Does not depend on files, tasks or torch.

Shape letters: S states of one level, B positions of the span, E edges, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orderlens.common.grid import Canvas
from orderlens.decode.batches import BatchLimit, run_in_batches
from orderlens.decode.census import PART, STATES_AT_ONCE, Span
from orderlens.decode.head import start_reduction
from orderlens.metrics.census_front import Corner, least_corner
from orderlens.models.protocol import FloatArray, IntArray, Model, StateBatch
from orderlens.texts.samples import EncodedSample


@dataclass(frozen=True, slots=True)
class ReachedText:
    """One text and the orders that lead to it; log q are sums over the span (nats).

    Attributes:
        tokens: the tokens, cut after the first EOS.
        share: share of all orders that produce it.
        log_q_best: largest sum of log q.
        log_q_mean: mean over these orders.
        var_least: least Var of log q among them.
        min_best: largest minimum of log q along an order.
    """

    tokens: tuple[int, ...]
    share: float
    log_q_best: float
    log_q_mean: float
    var_least: float
    min_best: float


@dataclass(frozen=True, slots=True)
class ReachedTexts:
    """The texts of one prompt, likeliest first; none where the search stopped at its limit.

    Attributes:
        texts: the texts.
        n_states: distinct states that were evaluated.
        is_finished: whether all orders were followed to their end.
    """

    texts: tuple[ReachedText, ...]
    n_states: int
    is_finished: bool


@dataclass(frozen=True, slots=True)
class _Edges:
    """Reveals from the states of one level to those of the next: where from, where to, log q."""

    before_E: IntArray
    after_E: IntArray
    logq_E: FloatArray
    n_after: int


def reachable_texts(
    model: Model,
    sample: EncodedSample,
    canvas: Canvas,
    size: int,
    max_states: int,
    on_states: Callable[[int], None] | None = None,
    limit: BatchLimit | None = None,
) -> ReachedTexts:
    """Follow all orders of the first ``size`` positions after a prompt.

    Args:
        model: any model.
        sample: the prompt (and suffix, or a template whose first hole has at least ``size`` tokens).
        canvas: where it lies; ``size`` positions are requested.
        size: free positions, inside one block.
        max_states: maximum number of distinct states.
        on_states: receives the number of newly evaluated states.
        limit: maximum number of states per batch; reduced when memory runs out.
    """
    search = _Search(model, sample, canvas, size, limit or BatchLimit(STATES_AT_ONCE), on_states)
    tokens_SB, edges, count = np.full((1, size), -1), list[_Edges](), 0
    for _ in range(size):
        count += len(tokens_SB)
        if count > max_states:
            return ReachedTexts((), count - len(tokens_SB), False)
        tokens_SB, found = search.next_level(tokens_SB)
        edges.append(found)
    return ReachedTexts(_texts(tokens_SB, edges, model.eos_ids), count, True)


class _Search:
    """Evaluates the states of one prompt, level by level."""

    def __init__(
        self,
        model: Model,
        sample: EncodedSample,
        canvas: Canvas,
        size: int,
        limit: BatchLimit,
        on_states: Callable[[int], None] | None,
    ) -> None:
        self.model, self.size, self.limit, self.on_states = model, size, limit, on_states
        span = Span(sample, canvas, (0,), sample.id)
        text = np.full(max(canvas.end, canvas.total), model.mask_id)
        given = np.concatenate([sample.prompt, sample.template])
        text[: len(given)] = given
        text[canvas.requested_end : canvas.requested_end + len(sample.suffix)] = sample.suffix
        self.low, high = canvas.window(span.block_start, model.attention)
        self.window_W, self.place = text[self.low : high], len(sample.prompt) - self.low
        self.prefix, self.offset = text[: span.block_start], canvas.offset
        self.name = f"prompt '{sample.id}'"

    def next_level(self, tokens_SB: IntArray) -> tuple[IntArray, _Edges]:
        """Reveal every masked position of every state; return the distinct results and the edges to them."""
        before_E, offset_E = np.nonzero(tokens_SB < 0)
        token_E, logq_E = np.zeros(len(before_E), np.int64), np.zeros(len(before_E))

        def work(members: Sequence[int]) -> None:
            mine = np.flatnonzero((before_E >= members[0]) & (before_E <= members[-1]))
            token_E[mine], logq_E[mine] = self._evaluate(tokens_SB[members[0] : members[-1] + 1])
            if self.on_states is not None:
                self.on_states(len(members))

        self.limit.sequences = min(self.limit.sequences or PART, PART)
        run_in_batches(self.limit, self.model, range(len(tokens_SB)), work, lambda _: self.name)
        after_EB = tokens_SB[before_E]
        after_EB[np.arange(len(before_E)), offset_E] = token_E
        distinct_SB, after_E = np.unique(after_EB, axis=0, return_inverse=True)
        return distinct_SB, _Edges(before_E, after_E.ravel(), np.minimum(logq_E, 0.0), len(distinct_SB))

    def _evaluate(self, tokens_SB: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the most probable token and its log-probability at every masked position, state by state."""
        session = self.model.open_session()
        session.prefill([self.prefix], [self.offset])
        windows_SW = np.repeat(self.window_W[None], len(tokens_SB), axis=0)
        inside = slice(self.place, self.place + self.size)
        windows_SW[:, inside] = np.where(tokens_SB < 0, self.model.mask_id, tokens_SB)
        state_R, offset_R = np.nonzero(tokens_SB < 0)
        count = len(tokens_SB)
        states = StateBatch(
            np.zeros(count, np.int64), np.full(count, self.low), windows_SW, state_R, offset_R + self.place
        )
        found = start_reduction(session.evaluate(states), self.model.eos_ids)().positions
        return found.top_token, found.top_logprob


def _texts(tokens_SB: IntArray, edges: Sequence[_Edges], eos_ids: frozenset[int]) -> tuple[ReachedText, ...]:
    size = len(edges)
    count: FloatArray = np.ones(1)
    total, best, worst, least = (np.zeros(1) for _ in range(4))
    for edge in edges:
        before, after, y = edge.before_E, edge.after_E, edge.logq_E
        total = _sums(after, total[before] + count[before] * y, edge.n_after)
        count = _sums(after, count[before], edge.n_after)
        best = _largest(after, best[before] + y, edge.n_after)
        worst = -_largest(after, -worst[before] - y, edge.n_after)
        least = _largest(after, np.minimum(least[before], y), edge.n_after)
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, tokens in enumerate(tokens_SB.tolist()):
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos_ids), size)
        groups.setdefault(tuple(tokens[:end]), []).append(place)
    texts = [
        ReachedText(
            tokens,
            float(count[own].sum()) / math.factorial(size),
            float(best[own].max()),
            float(total[own].sum() / count[own].sum()),
            _least_variance(_leading(edges, own), float(worst[own].min()), float(best[own].max())),
            float(least[own].max()),
        )
        for tokens, own in groups.items()
    ]
    return tuple(sorted(texts, key=lambda text: -text.share))


def _sums(after_E: IntArray, value_E: FloatArray, count: int) -> FloatArray:
    return np.asarray(np.bincount(after_E, value_E, count), np.float64)


def _largest(after_E: IntArray, value_E: FloatArray, count: int) -> FloatArray:
    found = np.full(count, -np.inf)
    np.maximum.at(found, after_E, value_E)
    return found


def _leading(edges: Sequence[_Edges], own: Sequence[int]) -> list[_Edges]:
    """Return the edges that lead to some full states; the states of each level are numbered anew."""
    found: list[_Edges] = []
    wanted = np.isin(np.arange(edges[-1].n_after), own)
    for edge in reversed(edges):
        kept = wanted[edge.after_E]
        before_E, after_E = edge.before_E[kept], (np.cumsum(wanted) - 1)[edge.after_E[kept]]
        count, wanted = int(wanted.sum()), np.isin(np.arange(edge.before_E.max() + 1), before_E)
        found.append(_Edges((np.cumsum(wanted) - 1)[before_E], after_E, edge.logq_E[kept], count))
    return found[::-1]


def _least_variance(edges: Sequence[_Edges], worst: float, best: float) -> float:
    """Return the least Var over all paths, whose Σ log q are from ``worst`` to ``best``."""
    size = len(edges)

    def corner(mu: float) -> Corner:
        total, square = np.zeros(1), np.zeros(1)
        for edge in edges:
            total_E, square_E = total[edge.before_E] + edge.logq_E, square[edge.before_E] + edge.logq_E**2
            by = np.lexsort((square_E - 2 * mu * total_E, edge.after_E))
            first = by[np.searchsorted(edge.after_E[by], np.arange(edge.n_after))]
            total, square = total_E[first], square_E[first]
        place = int(np.argmin(square - 2 * mu * total))
        return Corner(mu, float(total[place]), float(square[place]), size)

    return least_corner(corner, worst / size, best / size).var
