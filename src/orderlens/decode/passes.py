"""The data of one forward pass of a batch of chains: the request, the result, the recorded columns.

Every token that was ever on the canvas has one event that wrote it: a reveal or an edit. The reveals contain
one reveal per position, the last one. If a position was masked again and refilled, its earlier reveals are
events in the revisions. The two tables together are the complete history.

A decoder with a ``StateRecorder`` requests all masked positions of each block, also under static orders, and
adds one row per chain and pass. ``runs.tables`` writes the table ``states``; ``analysis.traces`` reads it.

Shape letters: C chains of the batch, R rows (requested positions), sorted by chain, then left to right, W
window, B block size, A places that the next pass may request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.extra_inputs import LookAhead
from orderlens.models.protocol import FloatArray, IntArray, Rows, StateBatch
from orderlens.rules.stats import DrawStats, PendingStats, PositionStats
from orderlens.store.schema import ENTROPY_UNITS, TOP_UNITS

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PassRequest:
    """The states and rows that one pass evaluates.

    Attributes:
        index_C: index of each chain of the batch among all chains of the call.
        states: the chains' windows and the requested rows.
        offset_R: offset of each row in its chain's block.
        masked_R: whether its position is to be filled; other rows hold a token that may be revised.
        open_CB: all positions of the blocks that are to be filled.
    """

    index_C: IntArray
    states: StateBatch
    offset_R: IntArray
    masked_R: BoolArray
    open_CB: BoolArray

    @property
    def chain_R(self) -> IntArray:
        """Chain of each row, as a place in ``index_C``."""
        return self.states.row_state_R

    @property
    def token_R(self) -> IntArray:
        """The current token at each row; the mask id where masked."""
        tokens_R: IntArray = self.states.tokens_NW[self.states.row_state_R, self.states.row_offset_R]
        return tokens_R


@dataclass(frozen=True, slots=True)
class NextRows:
    """The part of the next pass that is known before the host chooses positions in the current pass.

    Attributes:
        first_C: first row of each chain in this pass; the next chain's rows follow.
        n_C: its number of rows.
        fixed_C: index in ``place_A`` of a static chain's one row in the next pass; −1 for a chain that
            requests all its rows again except the chosen one.
        place_A: places of this pass's rows, then those that static chains request next: chain × W + offset.
        width: W.
        temperature: of the draws.
        uniforms_A: uniform numbers of the next pass's draws; None at T = 0.
    """

    first_C: IntArray
    n_C: IntArray
    fixed_C: IntArray
    place_A: IntArray
    width: int
    temperature: float
    uniforms_A: FloatArray | None

    @property
    def left_C(self) -> IntArray:
        """Rows of each chain in the next pass."""
        return np.where(self.fixed_C < 0, self.n_C - 1, 1)


@dataclass(frozen=True, slots=True)
class SpeculativePass:
    """A pass that was queued on the device before the host chose.

    Attributes:
        predicted: waits for the prediction: the offset in the window and the token of each chain.
        rows: the model's rows under the prediction.
        pending: their statistics.
    """

    predicted: Callable[[], tuple[IntArray, IntArray]]
    rows: Rows
    pending: PendingStats


@dataclass(frozen=True, slots=True)
class Pass:
    """The results of one pass.

    Attributes:
        request: the evaluated states and rows.
        rows: the model's rows.
        stats: their position statistics.
        draws: one token per row, drawn at the run's temperature; None at T = 0.
        held_logprob_R: log-probability of each row's current token in this pass. Undefined where masked; None
            if no policy of the call revises.
        look_ahead: takes the sets of rows to try, and whether with drawn tokens (``LookAhead``). None if no
            policy needs look-ahead states.
        leave_one_out: takes filled rows; returns the log-probability of each row's token with only it masked.
            None if no policy needs look-ahead states.
    """

    request: PassRequest
    rows: Rows
    stats: PositionStats
    draws: DrawStats | None
    held_logprob_R: FloatArray | None
    look_ahead: LookAhead | None = None
    leave_one_out: Callable[[IntArray], FloatArray] | None = None

    @property
    def index_C(self) -> IntArray:
        """Place of each chain of the batch among all chains of the call."""
        return self.request.index_C

    @property
    def chain_R(self) -> IntArray:
        """Chain of each row, as a place in ``index_C``."""
        return self.request.chain_R

    @property
    def offset_R(self) -> IntArray:
        """Offset of each row in its chain's block."""
        return self.request.offset_R

    @property
    def masked_R(self) -> BoolArray:
        """Whether its position is to be filled."""
        return self.request.masked_R

    @property
    def index_R(self) -> IntArray:
        """Place of each row's chain among all chains."""
        return self.index_C[self.chain_R]


def dedupe_initial_states(states: StateBatch, prefix_C: IntArray) -> tuple[StateBatch, IntArray]:
    """Return the distinct initial states, and the index of each requested row among their rows.

    All policies start a prompt from the same state, so one slot per prompt is enough.

    Args:
        states: one per chain.
        prefix_C: prefix number of each chain; slots with equal numbers hold the same prefix.
    """
    initial_CX = np.column_stack((prefix_C, states.starts_N, states.tokens_NW))
    _, first_U, state_C = np.unique(initial_CX, axis=0, return_index=True, return_inverse=True)
    width = states.tokens_NW.shape[1]
    place_R = state_C.reshape(-1)[states.row_state_R] * width + states.row_offset_R
    place_r, row_R = np.unique(place_R, return_inverse=True)
    chosen = states.slots_N[first_U], states.starts_N[first_U], states.tokens_NW[first_U]
    return StateBatch(*chosen, place_r // width, place_r % width), row_R


def regroup(chain_r: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values of a sorted array, and the index of each entry among them."""
    new_r = np.ones(len(chain_r), bool)
    new_r[1:] = chain_r[1:] != chain_r[:-1]
    return chain_r[new_r], np.cumsum(new_r) - 1


def apply_per_count(rule: Callable[[int], int], count_r: IntArray) -> IntArray:
    """Apply ``rule`` to every count, once per distinct count."""
    distinct, place_r = np.unique(count_r, return_inverse=True)
    return np.array([rule(int(count)) for count in distinct], np.int64)[place_r]


Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Equal-length arrays by name, one entry per revealed (or changed) token: the output of a decoder."""
NO_TOKEN = -1
"""``old_token`` of a reveal, which replaces nothing."""


class TraceRecorder:
    """Collects the columns of every pass."""

    def __init__(self) -> None:
        self._reveals: list[Columns] = []
        self._revisions: list[Columns] = []

    def add_reveals(self, columns: Columns) -> None:
        """Add the tokens that one pass committed."""
        if len(columns["position"]):
            self._reveals.append(columns)

    def add_revisions(self, columns: Columns) -> None:
        """Add the tokens that one pass edited or masked again."""
        self._revisions.append(columns)

    def columns(self) -> tuple[Columns, Columns]:
        """Return the reveals (the last one of every position) and the revisions (all other events).

        Reveals are sorted by (sample, order, step), with steps numbered 0…n−1; revisions by (sample, order,
        forward, position). Without any revision, the second mapping is empty.
        """
        reveals, revisions = _merged(self._reveals), list(self._revisions)
        if any((part["event"] == "remask").any() for part in revisions):
            last = _is_last(reveals)
            reveals = _move_lookahead_counts(reveals, last)
            revisions.append(_as_events({name: values[~last] for name, values in reveals.items()}))
            reveals = _renumbered({name: values[last] for name, values in reveals.items()})
        if not revisions:
            return _sorted(reveals, "step"), {}
        return _sorted(reveals, "step"), _sorted(_merged(revisions), "forward", "position")


def _merged(parts: list[Columns]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _sorted(columns: Columns, *keys: str) -> dict[str, NDArray[Any]]:
    by = np.lexsort([columns[name] for name in (*keys[::-1], "order", "sample")])
    return {name: values[by] for name, values in columns.items()}


def _is_last(reveals: Columns) -> NDArray[np.bool_]:
    """Return which reveals are the last of their position."""
    by = np.lexsort((reveals["step"], reveals["position"], reveals["order"], reveals["sample"]))
    key = np.stack([reveals[name][by] for name in ("sample", "order", "position")])
    last = np.ones(len(by), bool)
    last[by[:-1]] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    return last


def _move_lookahead_counts(
    reveals: dict[str, NDArray[Any]], last: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """Add the look-ahead counts of superseded reveals to the first remaining reveal of their trace."""
    if "n_lookahead" not in reveals:
        return reveals
    counts, key = reveals["n_lookahead"].copy(), np.stack([reveals["sample"], reveals["order"]])
    trace = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    superseded_T = np.bincount(trace, np.where(last, 0, counts)).astype(counts.dtype)
    remaining = np.lexsort((reveals["step"], trace, ~last))[: int(last.sum())]
    first_T = remaining[np.unique(trace[remaining], return_index=True)[1]]
    counts[first_T] += superseded_T
    return {**reveals, "n_lookahead": counts}


def _renumbered(reveals: Columns) -> dict[str, NDArray[Any]]:
    """Number the steps of every trace from 0."""
    renumbered = _sorted(reveals, "step")
    trace = np.stack([renumbered["sample"], renumbered["order"]])
    first = np.ones(trace.shape[1], bool)
    first[1:] = (trace[:, 1:] != trace[:, :-1]).any(axis=0)
    place = np.arange(len(first))
    renumbered["step"] = place - np.maximum.accumulate(np.where(first, place, 0))
    return renumbered


def _as_events(reveals: Columns) -> Columns:
    """Return superseded reveals as rows of the revisions."""
    count = len(reveals["position"])
    return {name: reveals[name] for name in ("sample", "order", "forward", "position")} | {
        "event": np.full(count, "reveal"),
        "old_token": np.full(count, NO_TOKEN),
        "old_logq": np.full(count, np.nan),
        "new_token": reveals["token_id"],
        "logq": reveals["logq"],
    }


class StateRecorder:
    """Collects the states of a unit.

    Attributes:
        with_certainty: whether the decoder adds the column ``self_certainty`` to the reveals.
        passes: one mapping per ``add``: columns of the chains [C], ``visible`` [C, B], ``count`` [C] and the
            codes ``top`` and ``entropy`` [R].
    """

    with_certainty = True

    def __init__(self) -> None:
        self.passes: list[dict[str, NDArray[Any]]] = []

    def add(self, chains: Columns, visible_CB: BoolArray, chain_R: IntArray, stats: PositionStats) -> None:
        """Add one pass.

        Args:
            chains: columns that name each chain and pass [C].
            visible_CB: positions of the block that hold a token.
            chain_R: chain of each masked position.
            stats: statistics of the masked positions [R].
        """
        top_R, entropy_R = np.exp(stats.top_logprob) * TOP_UNITS, stats.entropy * ENTROPY_UNITS
        codes = {"top": _code(top_R), "entropy": _code(entropy_R)}
        count_C = np.bincount(chain_R, minlength=len(visible_CB))
        self.passes.append({**chains, "visible": visible_CB, "count": count_C, **codes})

    def columns(self, limit: int) -> Columns:
        """Return the rows sorted by sample, order and pass, with all codes in the same sequence.

        ``limit`` is the maximum number of masked positions per trace; the passes after it are left out.
        """
        rows = {name: np.concatenate([part[name] for part in self.passes]) for name in self.passes[0]}
        codes = {name: rows.pop(name) for name in ("top", "entropy")}
        first = np.cumsum(rows["count"]) - rows["count"]
        by = np.lexsort((rows["forward"], rows["order"], rows["sample"]))
        rows = {name: values[by] for name, values in rows.items()}
        total, first = np.cumsum(rows["count"]), first[by]
        new = np.ones(len(by), bool)
        new[1:] = (np.diff(rows["sample"]) != 0) | (np.diff(rows["order"]) != 0)
        before = (total - rows["count"])[new][np.cumsum(new) - 1]
        kept = (total - before <= limit) & (rows["count"] > 0)
        rows = {name: values[kept] for name, values in rows.items()}
        count, end = rows["count"], np.cumsum(rows["count"])
        place = np.repeat(first[kept] - end + count, count) + np.arange(int(count.sum()))
        return rows | {name: values[place] for name, values in codes.items()}


def _code(value_R: NDArray[np.float64]) -> NDArray[np.uint16]:
    return np.clip(np.rint(value_R), 0, 0xFFFF).astype(np.uint16)
