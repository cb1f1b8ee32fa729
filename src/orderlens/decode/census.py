"""All states of spans of fixed texts, and the paths that orders and set policies take through them.

A span is some positions of a target inside one block. Its census evaluates every set of revealed
positions of the span once: given text and target positions before the span's first are visible, all others
outside it stay masked, on the sample's own canvas and block grid. ``score`` along any order that begins
with these positions therefore meets the same states. Rules then walk the evaluated states without further
forwards; only look-ahead states, and rules that read whole distributions, are evaluated anew. Does not
depend on files or torch.

Shape letters: M spans, B block size, N states of one span (2^size − 1), U states of a call, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from orderlens.common.grid import Canvas
from orderlens.decode.batches import BatchLimit, run_in_batches
from orderlens.decode.passes import Columns
from orderlens.decode.score import Scorer
from orderlens.decode.target_states import BoolArray, TargetStates, lay_out_blocks
from orderlens.errors import ModelOutputError, UserInputError
from orderlens.models.protocol import FloatArray, IntArray, LogProbRows, Model, Rows, Session
from orderlens.rules.policy import Policy
from orderlens.rules.stats import PositionStats, TargetStats
from orderlens.texts.samples import EncodedSample

STATES_AT_ONCE = 8192
"""Maximum number of states that are evaluated before their statistics are read."""
PART = 1024
"""States of one call of the model; several calls are queued, so that a GPU does not wait for the host."""
WHOLE_ROWS = frozenset({"kl_previous", "token_logprobs"})
"""Extra inputs that need the whole distribution of a position, which a census does not keep."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some positions of a text's target.

    Attributes:
        text: the whole sample.
        canvas: its canvas.
        offsets: places of the positions in the target, in increasing order.
        id: the sample id of the span's traces.
    """

    text: EncodedSample
    canvas: Canvas
    offsets: tuple[int, ...]
    id: str

    @property
    def size(self) -> int:
        """Number of positions."""
        return len(self.offsets)

    @property
    def positions(self) -> IntArray:
        """Absolute positions [size]."""
        return len(self.text.prompt) + np.asarray(self.offsets)

    @property
    def block_start(self) -> int:
        """Absolute position of the first token of the span's block."""
        first = int(self.positions[0])
        return first - (first - self.canvas.first_start) % self.canvas.block_size

    @property
    def n_states(self) -> int:
        """Number of states: every set of revealed positions but the full one."""
        return (1 << self.size) - 1

    @property
    def sample(self) -> EncodedSample:
        """The span as a sample: the text before it is prompt, from its first position to its last target."""
        text, start = self.text, self.offsets[0]
        before = np.concatenate([text.prompt, text.target[:start]])
        return replace(text, id=self.id, prompt=before, target=text.target[start : self.offsets[-1] + 1])

    def refuse_misfit(self) -> None:
        """Raise where the span leaves the target or its block."""
        text, start, last = self.text, self.offsets[0], self.offsets[-1]
        if last >= len(text.target):
            raise UserInputError(
                f"sample '{text.id}': a span from {start} to {last} ends past its target of "
                f"{len(text.target)} tokens; use a smaller --span, another --start, other --positions, or "
                "--allow-short to shorten such spans"
            )
        end = self.block_start + self.canvas.block_size - len(text.prompt)
        if last >= end:
            raise UserInputError(
                f"sample '{text.id}': a span from {start} to {last} crosses a block boundary at {end} "
                f"(blocks of {self.canvas.block_size}), and orders are free inside one block only; use "
                f"--span {end - start} or less, --start {end}, other --positions, a larger --block-size, or "
                "--anchor prompt"
            )


class SpanStates(TargetStates):
    """Evaluates states of spans; one session slot per span, filled at the first request."""

    def __init__(self, model: Model, spans: Sequence[Span]) -> None:
        self.model, self.spans = model, spans
        self.samples = [span.sample for span in spans]
        whole = lay_out_blocks(model, [span.text for span in spans], [span.canvas for span in spans])
        own = np.flatnonzero(whole.start_M == np.array([span.block_start for span in spans])[whole.sample_M])
        self.place_MB = np.full(whole.open_MB[own].shape, -1)  # which position of the span, -1 outside it
        for m, span in enumerate(spans):
            self.place_MB[m, span.positions - span.block_start] = np.arange(span.size)
        earlier_MB = np.maximum.accumulate(self.place_MB, axis=1) < 0
        names = ("sample_M", "low_M", "start_M", "around_MW", "clean_MB")
        self.blocks = replace(
            whole,
            **{name: getattr(whole, name)[own] for name in names},
            block_M=np.zeros(len(own), np.int64),
            given_MB=whole.given_MB[own] | (whole.open_MB[own] & earlier_MB),
            open_MB=self.place_MB >= 0,
        )

    @cached_property
    def session(self) -> Session:  # type: ignore[override]
        """The model's memory of the texts before the spans' blocks."""
        session = self.model.open_session()
        prefixes = [
            np.concatenate([span.text.prompt, span.text.target])[: span.block_start] for span in self.spans
        ]
        session.prefill(prefixes, [span.canvas.offset for span in self.spans])
        return session

    def sets(self, m_U: IntArray, set_U: IntArray) -> BoolArray:
        """Return what is visible [U, B] if of each span the positions in ``set_U`` (as bits) are revealed."""
        bit_UB = (set_U[:, None] >> np.maximum(self.place_MB[m_U], 0)) & 1 == 1
        visible_UB: BoolArray = self.blocks.given_MB[m_U] | (self.blocks.open_MB[m_U] & bit_UB)
        return visible_UB


class KnownStates(SpanStates):
    """Answers states of spans of one size from statistics that were evaluated before.

    With ``has_rows``, whole distributions are evaluated anew; without, rules that read them cannot use it.
    """

    def __init__(self, model: Model, spans: Sequence[Span], stats: TargetStats, *, has_rows: bool) -> None:
        super().__init__(model, spans)
        self._has_rows = has_rows
        masked_SB = _masked(spans[0].size)
        self._stats, self._rows_each = stats, int(masked_SB.sum())
        self._row_SB = (np.cumsum(masked_SB) - 1).reshape(masked_SB.shape)

    def start_evaluation(
        self, m_U: IntArray, visible_UB: BoolArray, wanted_UB: BoolArray
    ) -> tuple[IntArray, Rows, Callable[[], TargetStats]]:
        """Answer as ``SpanStates`` would, with the known statistics."""
        state_R, offset_R = np.nonzero(wanted_UB)
        m_R, place_UB = m_U[state_R], self.place_MB[m_U]
        set_U = ((visible_UB & (place_UB >= 0)).astype(np.int64) << np.maximum(place_UB, 0)).sum(axis=1)
        row_R = self._row_SB[set_U[state_R], place_UB[state_R, offset_R]]
        found = self._stats.take(m_R * self._rows_each + row_R)
        if self._has_rows:
            row_UB, rows, _ = super().start_evaluation(m_U, visible_UB, wanted_UB)
            return row_UB, rows, lambda: found
        row_UB = np.full(wanted_UB.shape, -1)
        row_UB[state_R, offset_R] = np.arange(len(state_R))
        return row_UB, LogProbRows(np.empty((len(state_R), 0))), lambda: found


def _masked(size: int) -> BoolArray:
    """Return whether each position is masked, by set [2^size, size]."""
    masked_SB: BoolArray = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 == 0
    return masked_SB


def census_batch(
    model: Model,
    spans: Sequence[Span],
    policies: Sequence[Policy],
    on_states: Callable[[int], None] | None = None,
    limit: BatchLimit | None = None,
) -> tuple[list[FloatArray], Columns]:
    """Evaluate all states of all spans and walk every policy through them.

    Returns log p(x_i | revealed set) per span ``[2^size, size]``, NaN where i is revealed, and the trace
    columns of the policies, in which ``sample`` counts the spans.

    Args:
        model: any model that can score.
        spans: the spans, of any size.
        policies: policies without revise rules; may be empty.
        on_states: receives the number of newly evaluated states.
        limit: maximum number of states per batch; reduced when memory runs out.
    """
    for span in spans:
        span.refuse_misfit()
    for policy in policies:
        policy.refuse_to_score()
    known = limit or BatchLimit(STATES_AT_ONCE)
    tables: dict[int, FloatArray] = {}
    parts: list[Columns] = []
    for members in _like_ones(model, spans):
        group = [spans[index] for index in members]
        stats = evaluate_spans(model, group, known, on_states)
        tables |= dict(zip(members, _tables(group, stats), strict=True))
        parts += [
            {**columns, "sample": np.asarray(members)[columns["sample"]]}
            for columns in _walk(model, group, stats, policies)
        ]
    return [tables[index] for index in range(len(spans))], _merged(parts)


def _like_ones(model: Model, spans: Sequence[Span]) -> Iterator[list[int]]:
    """Yield the spans that are evaluated together: of one size and, under full attention, equal canvases."""

    def kind(index: int) -> tuple[int, int]:
        full = model.attention == "full"
        return spans[index].size, spans[index].canvas.total if full else 0

    for _, members in groupby(sorted(range(len(spans)), key=kind), key=kind):
        yield list(members)


def evaluate_spans(
    model: Model,
    spans: Sequence[Span],
    limit: BatchLimit,
    on_states: Callable[[int], None] | None = None,
    n_states: int | None = None,
) -> TargetStats:
    """Return the statistics of all masked positions of all states, by span, set and position.

    Args:
        model: the model.
        spans: spans of one size (and one canvas length under full attention).
        limit: maximum number of states per batch.
        on_states: receives the number of newly evaluated states.
        n_states: maximum number of states, the first ones; all by default.
    """
    each = spans[0].n_states
    n_masked = _masked(spans[0].size).sum(axis=1)[:-1]
    row_ends = np.cumsum(np.tile(n_masked, len(spans))[:n_states])
    numbers = [np.full(row_ends[-1], np.nan) for _ in range(6)]
    positions = PositionStats(np.zeros(row_ends[-1], np.int64), *numbers[:4])
    found = TargetStats(positions, *numbers[4:])

    def work(members: Sequence[int]) -> None:
        low, high = members[0] // each, members[-1] // each + 1
        states = SpanStates(model, spans[low:high])
        parts = [np.asarray(members[at : at + PART]) for at in range(0, len(members), PART)]
        waiting = []
        for part in parts:
            m_U = part // each - low
            visible_UB = states.sets(m_U, part % each)
            waiting.append(
                states.start_evaluation(m_U, visible_UB, states.blocks.open_MB[m_U] & ~visible_UB)[2]
            )
        for part, wait in zip(parts, waiting, strict=True):
            _put(found, slice(row_ends[part[0]] - n_masked[part[0] % each], row_ends[part[-1]]), wait())
        if on_states is not None:
            on_states(len(members))

    run_in_batches(
        limit, model, range(len(row_ends)), work, lambda number: f"span '{spans[number // each].id}'"
    )
    return found


def _put(into: TargetStats, at: slice, found: TargetStats) -> None:
    for name in ("top_token", "top_logprob", "second_logprob", "entropy", "eos_logprob"):
        getattr(into.positions, name)[at] = getattr(found.positions, name)
    into.target_logprob[at] = found.target_logprob
    into.competitor_logprob[at] = found.competitor_logprob


def _tables(spans: Sequence[Span], stats: TargetStats) -> Iterator[FloatArray]:
    """Yield log p by set and position of every span; refuse texts with an impossible token."""
    masked = _masked(spans[0].size)
    for span, values in zip(spans, np.split(stats.target_logprob, len(spans)), strict=True):
        table = np.full(masked.shape, np.nan)
        table[masked] = np.minimum(values, 0.0)
        impossible = np.argwhere(masked & ~np.isfinite(table))
        if len(impossible):
            raise ModelOutputError(
                f"sample '{span.text.id}': the model gives the target token at position "
                f"{span.positions[impossible[0][1]]} probability zero; this text cannot have a census"
            )
        yield table


def _walk(
    model: Model, spans: Sequence[Span], stats: TargetStats, policies: Sequence[Policy]
) -> Iterator[Columns]:
    """Yield the policies' trace columns, from known states; whole rows are evaluated anew."""
    needing = [bool(policy.needs & WHOLE_ROWS) for policy in policies]
    for anew in (False, True):
        mine = [place for place, needs in enumerate(needing) if needs == anew]
        if not mine:
            continue
        states = KnownStates(model, spans, stats, has_rows=anew)
        scorer = Scorer(states, [policies[place] for place in mine], lambda _: None)
        for _ in scorer.passes():
            pass
        columns = scorer.columns()
        yield {**columns, "order": np.asarray(mine)[columns["order"]]}


def _merged(parts: Sequence[Columns]) -> Columns:
    """Return all columns by (span, policy, step); what only some rules have is 0 for the others."""
    if not parts:
        return {}
    names = dict.fromkeys(name for part in parts for name in part)

    def column(part: Columns, name: str) -> Any:
        return part[name] if name in part else np.zeros(len(part["step"]), np.int64)

    merged = {name: np.concatenate([column(part, name) for part in parts]) for name in names}
    by = np.lexsort((merged["step"], merged["order"], merged["sample"]))
    return {name: values[by] for name, values in merged.items()}
