"""Reveal orders, and their base classes: the class of an order decides which statistics it receives.

An order ranks the masked positions; a commit rule decides how many a pass reveals (``orderlens.rules``). A
deployable order scores a ``StepView`` of ``PositionStats`` and so cannot see a target; only an
``OracleOrder`` receives ``TargetStats``. Orders do not depend on models, batches or prompts. Scores are
compared, not stored: the largest comes first, the leftmost if several tie. ``Card`` describes an order in
lists and legends; ``check_path`` refuses a static path that repeats or skips a position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.stats import BoolArray, DrawStats, FloatArray, IntArray, PositionStats, TargetStats
from orderlens.rules.view import StepView

__all__ = [
    "ConfidenceOrder",
    "DrawingOrder",
    "LookaheadOrder",
    "OracleOrder",
    "Order",
    "StaticOrder",
    "StepView",
]
Tier = Literal["structured", "random", "control", "target-aware", "unknown"]
"""``structured``: deployable and meant to write well. ``random``: drawn independently of the model.
``control``: deployable and meant to write badly. ``target-aware``: sees the target, so its sums are not
likelihoods. ``unknown``: the order is not installed."""

AFTER = frozenset(("n_after", "entropy_after", "logprob_after", "square_after", "least_after", "value_after"))
"""Inputs of a look-ahead order, over what stays masked after a try, y being log p of the most probable token:
number of positions, mean entropy, Σ y, Σ y², smallest y, and the sum of the order's ``value`` of y."""
UNRANKED = 1000
"""Rank of an order without one: after all others, sorted by name."""


@dataclass(frozen=True, slots=True)
class Card:
    """An order in lists and legends.

    Attributes:
        tier: see ``Tier``.
        rank: place in lists and legends, smaller first.
        marker: matplotlib marker; empty for an unused one.
    """

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"

    @property
    def label(self) -> str:
        """The id, plus any option that is not a seed."""
        return self.id

    @property
    def seed(self) -> int | None:
        """The order's own seed, or None when it has none."""
        return None

    @property
    def files(self) -> Mapping[str, str]:
        """Digest of what the order reads from each file."""
        return {}

    @property
    def randomised(self) -> bool:
        """Whether the path depends on random numbers, so that a likelihood is an average over seeds."""
        return self.seed is not None

    @property
    def spec(self) -> str:
        """The text that parses to this order again."""
        return self.label if self.seed is None else f"{self.label}:{self.seed}"

    def with_seed(self, seed: int) -> Order:
        """Return the same order with another seed, parsed from its text."""
        parse: Callable[[str], Order] = getattr(type(self), "parse")  # noqa: B009 -- not every order has one
        return parse(f"{self.label}:{seed}".removeprefix(f"{self.id}:"))


class StaticOrder(Order):
    """An order whose path does not depend on the model, so all its steps can be computed in parallel."""

    @abstractmethod
    def path(self, n_positions: int, sample_id: str, block: int) -> IntArray:
        """Return a permutation of ``range(n_positions)``: entry t is the position revealed at step t."""


class ConfidenceOrder(Order):
    """A deployable order that depends on the model's conditionals."""

    reads: ClassVar[Reading | None] = None
    """The statistic that ``scores`` returns unchanged, if it is one: the device then starts the next pass
    speculatively. A wrong value costs time and does not change results."""

    @abstractmethod
    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return one score per masked position [R]."""


class DrawingOrder(ConfidenceOrder):
    """An order that, at T > 0, draws a token at every masked position and then compares the draws."""

    draw_reads: ClassVar[Reading | None] = None
    """The statistic that ``draw_scores`` returns, as ``reads``."""

    @property
    def draws_first(self) -> bool:
        """Whether it draws before choosing; otherwise it chooses by ``scores`` and draws afterwards."""
        return True

    @abstractmethod
    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        """Return one score per drawn token [R]."""


class LookaheadOrder(ConfidenceOrder):
    """An order that tries positions before it chooses; the model evaluates one look-ahead state per try.

    A try reveals the position's most probable token. ``view.extras`` then holds the numbers of ``AFTER`` over
    the positions that would still be masked (in the block, or in the canvas of a full-attention model). They
    are NaN for positions that were not tried, and 0 for a chain's only candidate, which needs no try.
    """

    needs = frozenset({"entropy_after"})

    def value(self, logprob_r: FloatArray) -> FloatArray:
        """Return the order's own function of each remaining y, for ``value_after``."""
        return np.zeros_like(logprob_r)

    @abstractmethod
    def candidates(self, view: StepView[PositionStats]) -> BoolArray:
        """Return which rows to try [R]."""


class OracleOrder(Order):
    """A diagnostic order that sees the target; it cannot generate and does not define a distribution."""

    @abstractmethod
    def scores(self, view: StepView[TargetStats]) -> Scores:
        """Return one score per masked position [R]."""


def check_path(order: StaticOrder, n_positions: int, sample_id: str, block: int) -> IntArray:
    """Return the order's path for one block, [n_positions], after checking that it is a permutation.

    Raises:
        UserInputError: the path has another length, or repeats or misses a position.
    """
    found = np.asarray(order.path(n_positions, sample_id, block))
    if found.dtype.kind in "iu" and np.array_equal(np.sort(found, axis=None), np.arange(n_positions)):
        return found.astype(np.int64, copy=False).reshape(n_positions)
    shown = np.array2string(found.ravel()[:6], separator=", ")
    raise UserInputError(
        f"order '{order.spec}': its path over {n_positions} positions (sample '{sample_id}', block {block}) "
        f"is not a permutation of 0…{n_positions - 1} (it begins {shown}); path() must list each one once"
    )
