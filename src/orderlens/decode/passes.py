"""One forward pass of a batch of chains as the parts of a round hand it on: requested, evaluated, recorded.

Every token that was ever on the canvas has one event that put it there: a reveal or an edit. The reveals hold
one reveal per position, the last one. Where a position was taken back and filled again, its earlier reveals
are among the revisions, as separate events, so that both tables together are the whole history.

Shape letters: C chains of the batch, R rows (requested positions), sorted by chain, then left to right, W
window, A places that the next pass may request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orderlens.models.protocol import FloatArray, IntArray, Rows, StateBatch
from orderlens.rules.stats import Answer, DrawStats, PositionStats

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PassRequest:
    """What one pass is to evaluate.

    Attributes:
        index_C: place of each chain of the batch among all chains of the call.
        states: the chains' windows and the rows wanted of them.
        offset_R: offset of each row in its chain's block.
        masked_R: whether its position is to be filled (else it holds a token that may be revised).
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
        """The token that stands at each row; the mask id where masked."""
        tokens_R: IntArray = self.states.tokens_NW[self.states.row_state_R, self.states.row_offset_R]
        return tokens_R


@dataclass(frozen=True, slots=True)
class NextRows:
    """What the host knows of the next pass before anything is chosen in this one.

    Attributes:
        first_C: first row of each chain in this pass; the next chain's rows follow.
        n_C: its number of rows.
        fixed_C: where its one row of the next pass stands in ``place_A``; −1 for a chain that
            requests all its rows but the chosen one again.
        place_A: places of this pass's rows, then those that static chains request next: chain × W + offset.
        width: W.
        temperature: of the draws.
        uniforms_A: the numbers behind the next pass's draws; None at T = 0.
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
class Queued:
    """A pass that is under way.

    Attributes:
        guess: waits for what was guessed: offset in the window and token of each chain.
        rows: what the model says then.
        answer: the same as statistics.
    """

    guess: Callable[[], tuple[IntArray, IntArray]]
    rows: Rows
    answer: Answer


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass evaluated.

    Attributes:
        request: where.
        rows: what the model says there.
        stats: the same as position statistics.
        draws: one token per row drawn at the run's temperature; None at T = 0.
        held_logprob_R: log-probability of each row's own token in this pass; without meaning where masked,
            and None where no policy of the call revises.
        look: takes rows to try; returns the mean entropy of what is masked after each. None where no policy
            of the call looks ahead.
        apart: takes held rows; returns the log-probability of each one's token where it alone is masked. None
            as ``look``.
    """

    request: PassRequest
    rows: Rows
    stats: PositionStats
    draws: DrawStats | None
    held_logprob_R: FloatArray | None
    look: Callable[[IntArray], FloatArray] | None = None
    apart: Callable[[IntArray], FloatArray] | None = None

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
    """Return the distinct states of chains that only begin, and where each wanted row is among their rows.

    The policies of a prompt begin in the same state: one of its slots serves all of them.

    Args:
        states: one per chain.
        prefix_C: equal numbers mean that two slots hold the same.
    """
    begun_CX = np.column_stack((prefix_C, states.starts_N, states.tokens_NW))
    _, first_U, state_C = np.unique(begun_CX, axis=0, return_index=True, return_inverse=True)
    width = states.tokens_NW.shape[1]
    place_R = state_C.reshape(-1)[states.row_state_R] * width + states.row_offset_R
    place_r, row_R = np.unique(place_R, return_inverse=True)
    chosen = states.slots_N[first_U], states.starts_N[first_U], states.tokens_NW[first_U]
    return StateBatch(*chosen, place_r // width, place_r % width), row_R


def regroup(chain_r: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values of a sorted array, and each entry's place among them."""
    new_r = np.ones(len(chain_r), bool)
    new_r[1:] = chain_r[1:] != chain_r[:-1]
    return chain_r[new_r], np.cumsum(new_r) - 1


def per_count(rule: Callable[[int], int], count_r: IntArray) -> IntArray:
    """Return a rule's number for every count, computed once per distinct one."""
    distinct, place_r = np.unique(count_r, return_inverse=True)
    return np.array([rule(int(count)) for count in distinct], np.int64)[place_r]


Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Equal-length arrays by name, one entry per revealed (or changed) token: what a decoder hands on."""
NO_TOKEN = -1
"""``old_token`` of a reveal, which replaces nothing."""


class Recorder:
    """Collects the columns of every pass."""

    def __init__(self) -> None:
        self._reveals: list[Columns] = []
        self._revisions: list[Columns] = []

    def add_reveals(self, columns: Columns) -> None:
        """Add the tokens that one pass committed."""
        if len(columns["position"]):
            self._reveals.append(columns)

    def add_revisions(self, columns: Columns) -> None:
        """Add the tokens that one pass changed or took back."""
        self._revisions.append(columns)

    def columns(self) -> tuple[Columns, Columns]:
        """Return the last reveal of every position, and everything else that happened.

        Reveals come sorted by (sample, order, step), with steps numbered 0…n−1; revisions by (sample, order,
        forward, position), without columns where there are none.
        """
        reveals, revisions = _merged(self._reveals), list(self._revisions)
        if any((part["event"] == "remask").any() for part in revisions):
            last = _is_last(reveals)
            reveals = _told_by_the_first(reveals, last)
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


def _told_by_the_first(reveals: dict[str, NDArray[Any]], last: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Let each trace's first lasting reveal tell the states that were tried when others were revealed."""
    if "n_lookahead" not in reveals:
        return reveals
    tried, key = reveals["n_lookahead"].copy(), np.stack([reveals["sample"], reveals["order"]])
    trace = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    lost_T = np.bincount(trace, np.where(last, 0, tried)).astype(tried.dtype)
    kept = np.lexsort((reveals["step"], trace, ~last))[: int(last.sum())]
    first_T = kept[np.unique(trace[kept], return_index=True)[1]]
    tried[first_T] += lost_T
    return {**reveals, "n_lookahead": tried}


def _renumbered(reveals: Columns) -> dict[str, NDArray[Any]]:
    """Number the steps of every trace from 0."""
    kept = _sorted(reveals, "step")
    trace = np.stack([kept["sample"], kept["order"]])
    first = np.ones(trace.shape[1], bool)
    first[1:] = (trace[:, 1:] != trace[:, :-1]).any(axis=0)
    place = np.arange(len(first))
    kept["step"] = place - np.maximum.accumulate(np.where(first, place, 0))
    return kept


def _as_events(reveals: Columns) -> Columns:
    """Return reveals that did not last as rows of the revisions."""
    count = len(reveals["position"])
    return {name: reveals[name] for name in ("sample", "order", "forward", "position")} | {
        "event": np.full(count, "reveal"),
        "old_token": np.full(count, NO_TOKEN),
        "old_logq": np.full(count, np.nan),
        "new_token": reveals["token_id"],
        "logq": reveals["logq"],
    }
