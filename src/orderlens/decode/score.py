"""The fast fixed-sequence scorer: all samples, orders and blocks of a batch side by side.

A fixed target makes every block's prefix known, so the clean sequence is prefilled once and each block of
each order becomes an independent *chain* of at most ``block_size`` steps. ``rank`` (the step at which each
position is revealed) describes a chain completely: what is visible at step t is ``rank < t``. Static orders
know their ranks beforehand, so all their steps form one wave; adaptive orders fill theirs in step by step.
Equal states within a wave (the all-masked block of every order, say) are evaluated once, and only rows that
somebody needs reach the head.

Shape letters: O orders, M blocks of all samples, W window, P (order, block, step) triples of a wave,
U distinct states, R rows. Knows nothing of files, text or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.batches import BatchLimit, Reporter, run_within
from orderlens.decode.columns import Columns
from orderlens.decode.select import choose
from orderlens.decode.target_states import BoolArray, TargetStates
from orderlens.errors import ModelOutputError, UserInputError
from orderlens.grid import Canvas
from orderlens.models.protocol import Anchor, IntArray, Model
from orderlens.orders.paths import check_path
from orderlens.orders.protocol import ConfidenceOrder, OracleOrder, Order, StaticOrder
from orderlens.samples import EncodedSample
from orderlens.stats import TargetStats

Advance = Callable[[int], None]
NEVER = np.iinfo(np.int64).max
"""Rank of a position that is not revealed (yet)."""


def score_batch(
    model: Model,
    samples: Sequence[EncodedSample],
    orders: Sequence[Order],
    anchor: Anchor | None = None,
    on_reveals: Advance | None = None,
    limit: BatchLimit | None = None,
) -> Columns:
    """Score every sample under every order; return trace columns sorted by (sample, order, step).

    Args:
        model: any model; its block size is the grid.
        samples: encoded samples with targets.
        orders: orders of any kind.
        anchor: where the grid starts; the model's own choice by default.
        on_reveals: called with the number of newly scored tokens.
        limit: how many samples are scored together; made smaller when memory runs out.
    """
    canvases = [
        Canvas.plan(len(sample.prompt), len(sample.target), model.block_size, anchor or model.anchor)
        for sample in samples
    ]
    check_fits(model, samples, canvases)
    parts: list[Columns] = []
    report, known = Reporter(on_reveals), limit or BatchLimit()

    def work(members: Sequence[int]) -> None:
        report.start()
        group, places = [samples[i] for i in members], [canvases[i] for i in members]
        columns = _Scorer(model, group, places, orders, report).run()
        parts.append({**columns, "sample": np.asarray(members)[columns["sample"]]})

    def again(members: Sequence[int]) -> Sequence[int]:
        report.failed()
        return members

    for members in _equal_windows(model, canvases):
        run_within(known, model, members, work, lambda i: f"sample '{samples[i].id}'", again)
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    in_order = np.lexsort((merged["step"], merged["order"], merged["sample"]))
    return {name: values[in_order] for name, values in merged.items()}


def check_fits(model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> None:
    """Refuse a sample whose canvas is longer than the model's context."""
    for sample, canvas in zip(samples, canvases, strict=True):
        if canvas.end > model.max_positions:
            raise UserInputError(
                f"sample '{sample.id}': {canvas.prompt_length} prompt + {canvas.n_requested} tokens need "
                f"{canvas.end} positions, but {model.name} has {model.max_positions}; shorten one of them"
            )


def _equal_windows(model: Model, canvases: Sequence[Canvas]) -> Iterator[list[int]]:
    """Group samples whose windows have one width: all of them, or equal canvases under full attention."""
    widths = [model.block_size if model.attention == "block-causal" else canvas.end for canvas in canvases]
    for width in sorted(set(widths)):
        yield [index for index, value in enumerate(widths) if value == width]


class _Scorer:
    def __init__(
        self,
        model: Model,
        samples: Sequence[EncodedSample],
        canvases: Sequence[Canvas],
        orders: Sequence[Order],
        on_reveals: Advance,
    ) -> None:
        self.model = model
        self.samples = samples
        self.orders = orders
        self.on_reveals = on_reveals
        self.states = TargetStates(model, samples, canvases)
        self.blocks = self.states.blocks
        self.steps_M = self.blocks.open_MW.sum(axis=1)
        self.rank_OMW = np.full((len(orders), *self.blocks.open_MW.shape), NEVER)
        self.static_O = np.array([isinstance(order, StaticOrder) for order in orders])
        self._plan_static_paths()
        shape = (*self.rank_OMW.shape[:2], int(self.steps_M.max()))
        self.found: dict[str, np.ndarray[Any, Any]] = {
            name: np.full(shape, np.nan)
            for name in ("logq", "max_logprob", "second_logprob", "entropy", "competitor_logprob")
        }
        self.found |= {name: np.zeros(shape, np.int64) for name in ("offset", "top_token", "n_tied")}

    def run(self) -> Columns:
        for o_P, m_P, t_P in self._waves():
            self._run_wave(o_P, m_P, t_P)
        return self._columns()

    def _plan_static_paths(self) -> None:
        for o, order in enumerate(self.orders):
            if not isinstance(order, StaticOrder):
                continue
            for m, open_W in enumerate(self.blocks.open_MW):
                sample_id = self.samples[self.blocks.sample_M[m]].id
                path = check_path(order, int(self.steps_M[m]), sample_id, int(self.blocks.block_M[m]))
                self.rank_OMW[o, m, np.flatnonzero(open_W)[path]] = np.arange(len(path))

    def _waves(self) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yield (order, block, step) triples: one wave for static orders alone, else one per step."""
        o_P, m_P, t_P = self._triples()
        if self.static_O.all():
            yield o_P, m_P, t_P
            return
        for step in range(int(self.steps_M.max())):
            now = t_P == step
            yield o_P[now], m_P[now], t_P[now]

    def _triples(self) -> tuple[IntArray, IntArray, IntArray]:
        exists_MT = np.arange(self.steps_M.max()) < self.steps_M[:, None]
        o, m, t = np.nonzero(np.broadcast_to(exists_MT, (len(self.orders), *exists_MT.shape)))
        return o, m, t

    def _run_wave(self, o_P: IntArray, m_P: IntArray, t_P: IntArray) -> None:
        rank_PW = self.rank_OMW[o_P, m_P]
        visible_PW = self.blocks.given_MW[m_P] | (rank_PW < t_P[:, None])
        masked_PW = self.blocks.open_MW[m_P] & ~visible_PW
        wanted_PW = np.where(self.static_O[o_P][:, None], rank_PW == t_P[:, None], masked_PW)
        first_U, state_P = distinct_states(m_P, visible_PW)
        wanted_UW = np.zeros((len(first_U), wanted_PW.shape[1]), bool)
        np.logical_or.at(wanted_UW, state_P, wanted_PW)
        row_UW, stats = self.states.evaluate(m_P[first_U], visible_PW[first_U], wanted_UW)
        row_PW = row_UW[state_P]
        offset_P, tied_P = (rank_PW == t_P[:, None]).argmax(axis=1), np.zeros_like(t_P)
        for o in np.flatnonzero(~self.static_O):
            mine = o_P == o
            scores_R = self._scores(self.orders[int(o)], stats)
            offset_P[mine], tied_P[mine] = choose(scores_R, row_PW[mine], masked_PW[mine])
            self.rank_OMW[o, m_P[mine], offset_P[mine]] = t_P[mine]
        self._record((o_P, m_P, t_P), offset_P, tied_P, stats.take(row_PW[np.arange(len(t_P)), offset_P]))
        self.on_reveals(len(t_P))

    @staticmethod
    def _scores(order: Order, stats: TargetStats) -> NDArray[np.float64]:
        if isinstance(order, OracleOrder):
            return order.scores(stats)
        if isinstance(order, ConfidenceOrder):
            return order.scores(stats.positions)
        raise UserInputError(f"order '{order.spec}' is neither static, confidence-based nor an oracle")

    def _record(
        self,
        where: tuple[IntArray, IntArray, IntArray],
        offset_P: IntArray,
        tied_P: IntArray,
        stats: TargetStats,
    ) -> None:
        impossible = np.flatnonzero(~np.isfinite(stats.target_logprob))
        if len(impossible):
            m = where[1][impossible[0]]
            position = self.blocks.start_M[m] + offset_P[impossible[0]]
            raise ModelOutputError(
                f"sample '{self.samples[self.blocks.sample_M[m]].id}': the model gives the target token at "
                f"position {position} probability zero; this text cannot be scored"
            )
        values = {
            "logq": np.minimum(stats.target_logprob, 0.0),
            "max_logprob": np.minimum(stats.positions.top_logprob, 0.0),
            "second_logprob": stats.positions.second_logprob,
            "entropy": stats.positions.entropy,
            "competitor_logprob": stats.competitor_logprob,
            "offset": offset_P,
            "top_token": stats.positions.top_token,
            "n_tied": tied_P,
        }
        for name, value in values.items():
            self.found[name][where] = value

    def _columns(self) -> Columns:
        o, m, t = self._triples()
        blocks = self.blocks
        flat = {name: values[o, m, t] for name, values in self.found.items()}
        before_M = _steps_before(blocks.sample_M, self.steps_M)
        offset = flat.pop("offset")
        return {
            **flat,
            "target_logprob": flat["logq"],
            "sample": blocks.sample_M[m],
            "order": o,
            "block": blocks.block_M[m],
            "step": before_M[m] + t,
            "position": blocks.start_M[m] + offset,
            "token_id": blocks.clean_MW[m, offset],
            "is_overflow": np.zeros(len(o), bool),
        }


def distinct_states(m_P: IntArray, visible_PW: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the index of one representative per distinct (block, visible set), and each triple's state."""
    bits = np.packbits(visible_PW, axis=1)
    keys = np.concatenate([m_P.astype(">i8")[:, None].view(np.uint8).reshape(len(m_P), 8), bits], axis=1)
    packed = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1])))[:, 0]
    _, first_U, state_P = np.unique(packed, return_index=True, return_inverse=True)
    return first_U, state_P


def _steps_before(sample_M: IntArray, steps_M: IntArray) -> IntArray:
    """Return the number of steps of the same sample's earlier blocks."""
    running = np.cumsum(steps_M) - steps_M
    first_of_sample = np.searchsorted(sample_M, sample_M)
    result: IntArray = running - running[first_of_sample]
    return result
