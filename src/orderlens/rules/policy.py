"""``Policy``: an order, a commit rule and, for generation, a revise rule.

Plain data with a canonical spec; decoding it is the decoder's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from orderlens.errors import UserInputError
from orderlens.rules.commit.schedules import Top
from orderlens.rules.orders.protocol import (
    ConfidenceOrder,
    DrawingOrder,
    OracleOrder,
    Order,
    Reading,
    StaticOrder,
    check_path,
)
from orderlens.rules.protocol import Commit, Schedule
from orderlens.rules.revise.protocol import Revise
from orderlens.rules.stats import IntArray

Likelihood: TypeAlias = Literal["exact", "estimate", "none"]


def spec_of(label: str, seed: float | None) -> str:
    """Return a trace's spec from its ``order`` and ``seed``: ``random+top=4``, 3 is ``random:3+top=4``."""
    if seed is None:
        return label
    order, plus, rules = label.partition("+")
    return f"{order}:{int(seed)}{plus}{rules}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A way of decoding.

    Attributes:
        order: which position comes first.
        commit: how many are revealed by one pass; one by default.
        revise: what may be changed afterwards; nothing by default.
        rule_seed: seed of a commit rule that draws where the order has none; 0 by default.
    """

    order: Order
    commit: Commit = field(default_factory=lambda: Top(1))
    revise: Revise | None = None
    rule_seed: int | None = None

    def __post_init__(self) -> None:
        if self.order.seed is None and self.commit.randomised:
            object.__setattr__(self, "rule_seed", self.rule_seed or 0)
        elif self.rule_seed is not None:
            raise UserInputError(
                f"policy '{self.spec}': no rule takes the seed {self.rule_seed}; leave it out"
            )
        if self.needs_target and self.revise is not None:
            raise UserInputError(
                f"policy '{self.spec}': order '{self.order.spec}' sees the target and can only score, "
                f"'{self.revise.id}' can only generate; leave one of them out"
            )
        self._check_revise()

    @classmethod
    def of(cls, item: Order | Policy) -> Policy:
        """Return ``item`` as a policy: an order alone reveals one token per pass."""
        return item if isinstance(item, Policy) else cls(item)

    @property
    def label(self) -> str:
        """The canonical spec without the seed: the trace's ``order`` column."""
        return self.order.label + self._rules

    @property
    def seed(self) -> int | None:
        """The order's seed, or that of a commit rule that draws beside an order which does not."""
        return self.rule_seed if self.order.seed is None else self.order.seed

    @property
    def spec(self) -> str:
        """The canonical text that parses to this policy again."""
        return spec_of(self.label, self.seed)

    def _check_revise(self) -> None:
        """Refuse another order or a commit rule beside a rule that chooses positions itself."""
        if (rule := self.revise) is None or rule.order_id is None:
            return
        if self.order.label != rule.order_id or not self._one_by_one:
            raise UserInputError(
                f"policy '{self.spec}': '{rule.id}' chooses the positions itself and goes with order "
                f"'{rule.order_id}' and no commit rule; write '{rule.order_id}+{rule.spec}'"
            )

    @property
    def _one_by_one(self) -> bool:
        return isinstance(self.commit, Top) and self.commit.k == 1

    @property
    def _rules(self) -> str:
        parts = [] if self._one_by_one else [self.commit.spec]
        return "".join(f"+{part}" for part in (parts if self.revise is None else [*parts, self.revise.spec]))

    @property
    def needs_target(self) -> bool:
        """Whether the order looks at the text it scores, so that it cannot generate."""
        return isinstance(self.order, OracleOrder)

    @property
    def needs(self) -> frozenset[str]:
        """What the rules ask for by name beyond the position statistics."""
        return self.order.needs | self.commit.needs

    @property
    def looks_ahead(self) -> bool:
        """Whether states are evaluated only to be looked at."""
        return "entropy_after" in self.order.needs or (self.revise is not None and self.revise.judges_apart)

    @property
    def is_static(self) -> bool:
        """Whether the path and its passes are known without the model."""
        return (
            isinstance(self.order, StaticOrder) and isinstance(self.commit, Schedule) and self.revise is None
        )

    @property
    def is_planned_by_revise(self) -> bool:
        """Whether the revise rule chooses all positions, so that order and commit rule are not asked."""
        return self.revise is not None and self.revise.order_id is not None

    def draws_first(self, temperature: float) -> bool:
        """Whether tokens are drawn at every masked position before positions are chosen."""
        return temperature > 0 and isinstance(self.order, DrawingOrder) and self.order.draws_first

    def speculates_by(self, temperature: float) -> Reading | None:
        """Return the number whose largest value is the next position, where that is all there is to the rule.

        A static order has one row in a pass, which is the largest by any number.
        """
        if not self._one_by_one or self.revise is not None or self.needs:
            return None
        if isinstance(self.order, StaticOrder):
            return "top"
        if isinstance(self.order, DrawingOrder) and self.draws_first(temperature):
            return self.order.draw_reads
        return self.order.reads if isinstance(self.order, ConfidenceOrder) else None

    def likelihood(self, temperature: float | None = None) -> Likelihood:
        """Say what a trace's summed log q is for the sampler that this policy defines at temperature 1.

        A deterministic rule that sees no target chooses its sets from what is already revealed, so the sum is
        the sampler's exact log-likelihood of the text (DUEL, arXiv 2603.01367). A randomised rule gives the
        likelihood along one of its paths: an estimate whose average over seeds counts. A target-aware order,
        a revised text, or a choice among draws defines none.

        Args:
            temperature: that of a generated trace; None for a scored one.
        """
        if self.needs_target or self.revise is not None or self.draws_first(temperature or 0.0):
            return "none"
        return "estimate" if self.order.randomised or self.commit.randomised else "exact"

    def planned(self, n_positions: int, sample_id: str, block: int) -> tuple[IntArray, IntArray]:
        """Return a static order's path over a block's open places, and the pass of each of its steps.

        Under a commit rule that needs the model the passes are only what one position per pass would give.
        """
        assert isinstance(self.order, StaticOrder)
        path = check_path(self.order, n_positions, sample_id, block)
        schedule = self.commit if isinstance(self.commit, Schedule) else Top(1)
        return schedule.plan(path)

    def refuse_to_generate(self) -> None:
        """Raise where generation makes no sense."""
        if self.needs_target:
            raise UserInputError(
                f"order '{self.spec}' needs a known target and cannot generate; use it with score"
            )

    def refuse_to_score(self) -> None:
        """Raise where a fixed text has no likelihood."""
        if self.revise is not None:
            raise UserInputError(
                f"policy '{self.spec}' changes tokens after it committed them, so a fixed text has no path "
                f"under it; score with '{replace(self, revise=None).spec}' or use it with generate"
            )
