"""The kinds of order. An order's kind decides what it may look at.

An order says which masked position comes first; how many are taken at once is a commit rule's business
(``orderlens.rules``). It scores a ``StepView``: a deployable order is handed one with ``PositionStats``
and so cannot see a target; only an ``OracleOrder`` is handed ``TargetStats``. Orders know nothing of models,
batches or prompts. Scores are compared, never stored: larger first, the leftmost one among equals. An order's
``Card`` is how it presents itself; ``check_path`` refuses a static path that repeats or skips a place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.stats import BoolArray, DrawStats, FloatArray, IntArray, PositionStats, TargetStats
from orderlens.rules.view import StepView

Tier = Literal["structured", "random", "control", "target-aware", "unknown"]
"""``structured``: deployable and meant to write well. ``random``: drawn without looking at the model.
``control``: deployable and meant to write badly. ``target-aware``: sees the target, so its sums are no
likelihoods. ``unknown``: the order's code is not installed here."""

UNRANKED = 1000
"""Rank of an order that says nothing about its place: after all that do, by name."""


@dataclass(frozen=True, slots=True)
class Card:
    """What lists and legends need to know of an order.

    Attributes:
        name: as in print, e.g. ``Forced-AR``.
        tier: see ``Tier``.
        rank: place in lists and legends, smaller first.
        marker: matplotlib marker; empty takes a spare one by name.
    """

    name: str
    tier: Tier
    rank: int = UNRANKED
    marker: str = ""


Reading = Literal["top", "margin", "certainty", "drawn"]
"""A position's log p(v1), p(v1) − p(v2), −H, or the log-probability of its drawn token."""
READINGS: tuple[Reading, ...] = get_args(Reading)
Scores: TypeAlias = FloatArray


class Order(ABC):
    """A reveal rule. ``label`` goes into the trace's ``order`` column, ``seed`` into its own."""

    id: ClassVar[str]
    summary: ClassVar[str]
    card: ClassVar[Card]
    needs: frozenset[str] = frozenset()
    """Names of what the view must hold in ``extras`` besides the statistics (see ``StepView``)."""

    @property
    def label(self) -> str:
        """The id, plus any option that is not a seed."""
        return self.id

    @property
    def seed(self) -> int | None:
        """The order's own seed, or None when it has none."""
        return None

    @property
    def randomised(self) -> bool:
        """Whether the path depends on random numbers, so that a likelihood is an average over seeds."""
        return self.seed is not None

    @property
    def spec(self) -> str:
        """The text that parses to this order again."""
        return self.label if self.seed is None else f"{self.label}:{self.seed}"


class StaticOrder(Order):
    """An order whose path does not depend on the model, so all its steps can be computed at once."""

    @abstractmethod
    def path(self, n_positions: int, sample_id: str, block: int) -> IntArray:
        """Return a permutation of ``range(n_positions)``: entry t is the place revealed at step t."""


class ConfidenceOrder(Order):
    """A deployable order that looks at the model's conditionals."""

    reads: ClassVar[Reading | None] = None
    """What ``scores`` returns where it is that alone: the device then begins the next pass before it is told
    which position was chosen. A wrong word costs time and changes nothing."""

    @abstractmethod
    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return one score per masked position [R]."""


class DrawingOrder(ConfidenceOrder):
    """An order that, at T > 0, draws a token at every masked position and then compares the draws."""

    draw_reads: ClassVar[Reading | None] = None
    """What ``draw_scores`` returns, as ``reads``."""

    @property
    def draws_first(self) -> bool:
        """Whether this one does so; otherwise it chooses by ``scores`` and the decoder draws afterwards."""
        return True

    @abstractmethod
    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        """Return one score per drawn token [R]."""


class LookaheadOrder(ConfidenceOrder):
    """An order that tries positions before it chooses: each try is a state of its own, evaluated ahead.

    Tries take the position's most probable token. ``view.extras["entropy_after"]`` is the mean entropy of
    what would then still be masked (the block, or the whole canvas of a full-attention model), NaN where a
    position was not tried, and 0 for a chain's only candidate, which needs no try.
    """

    needs = frozenset({"entropy_after"})

    @abstractmethod
    def candidates(self, view: StepView[PositionStats]) -> BoolArray:
        """Return which rows to try [R]."""


class OracleOrder(Order):
    """A diagnostic order that sees the target; it cannot generate and defines no distribution."""

    @abstractmethod
    def scores(self, view: StepView[TargetStats]) -> Scores:
        """Return one score per masked position [R]."""


def check_path(order: StaticOrder, n_positions: int, sample_id: str, block: int) -> IntArray:
    """Return the order's path for one block, [n_positions], once it is known to be a permutation.

    Raises:
        UserInputError: the path has another length, or repeats or misses a place.
    """
    found = np.asarray(order.path(n_positions, sample_id, block))
    if found.dtype.kind in "iu" and np.array_equal(np.sort(found, axis=None), np.arange(n_positions)):
        return found.astype(np.int64, copy=False).reshape(n_positions)
    shown = np.array2string(found.ravel()[:6], separator=", ")
    raise UserInputError(
        f"order '{order.spec}': its path over {n_positions} places (sample '{sample_id}', block {block}) is "
        f"no permutation of 0…{n_positions - 1} (it begins {shown}); path() must name every place once"
    )
