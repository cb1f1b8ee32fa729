"""``Policy``: an order, a commit rule and, for generation, a revise rule or a search rule.

Plain data with a canonical spec. Does not depend on the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from orderlens.errors import UserInputError
from orderlens.rules.commit.schedules import Top
from orderlens.rules.orders import (
    AFTER,
    ConfidenceOrder,
    DrawingOrder,
    OracleOrder,
    Order,
    Reading,
    StaticOrder,
    check_path,
)
from orderlens.rules.protocol import AFTER_SETS, Commit, Schedule
from orderlens.rules.revise import Revise
from orderlens.rules.search import Search
from orderlens.rules.stats import IntArray

Likelihood: TypeAlias = Literal["exact", "estimate", "none"]


def spec_of(label: str, seed: float | None) -> str:
    """Return a trace's spec from its ``order`` and ``seed``: ``random+top=4``, 3 is ``random:3+top=4``."""
    if seed is None:
        return label
    order, plus, rules = label.partition("+")
    return f"{order}:{int(seed)}{plus}{rules}"


@dataclass(frozen=True, slots=True, repr=False)
class Policy:
    """A decoding policy.

    Attributes:
        order: ranks the masked positions.
        commit: decides how many positions a pass reveals; one by default.
        revise: changes committed tokens; None for no changes.
        rule_seed: seed of a random commit rule if the order has no seed; 0 by default.
        search: decodes several paths per text and keeps some of them; None for one path.
    """

    order: Order
    commit: Commit = field(default_factory=lambda: Top(1))
    revise: Revise | None = None
    rule_seed: int | None = None
    search: Search | None = None

    def __repr__(self) -> str:
        return f"Policy({self.spec!r})"

    def __post_init__(self) -> None:
        if self.order.seed is None and self.commit.randomised:
            object.__setattr__(self, "rule_seed", self.rule_seed or 0)
        elif self.rule_seed is not None:
            raise UserInputError(
                f"policy '{self.spec}': no rule is random, so leave out the seed {self.rule_seed}"
            )
        only = self.revise or self.search
        if self.needs_target and only is not None:
            raise UserInputError(
                f"policy '{self.spec}': order '{self.order.spec}' sees the target and can only score, "
                f"'{only.id}' can only generate; leave one of them out"
            )
        if self.revise is not None and self.search is not None:
            raise UserInputError(
                f"policy '{self.spec}': '{self.search.id}' compares paths whose tokens stay, "
                f"'{self.revise.id}' changes tokens; leave one of them out"
            )
        self._check_revise()

    @classmethod
    def of(cls, item: Order | Policy) -> Policy:
        """Return ``item`` as a policy; an order alone reveals one token per pass."""
        return item if isinstance(item, Policy) else cls(item)

    @property
    def label(self) -> str:
        """The canonical spec without the seed, as in the trace's ``order`` column."""
        return self.order.label + self._rules

    @property
    def seed(self) -> int | None:
        """The order's seed; without one, the seed of a random commit rule."""
        return self.rule_seed if self.order.seed is None else self.order.seed

    @property
    def spec(self) -> str:
        """The canonical text that parses to this policy again."""
        return spec_of(self.label, self.seed)

    @property
    def files(self) -> dict[str, str]:
        """Digest of what the rules read from each file."""
        return {**self.order.files, **self.commit.files}

    def _check_revise(self) -> None:
        """Refuse another order or a commit rule next to a revise rule that chooses positions itself."""
        if (rule := self.revise) is None or rule.order_id is None:
            return
        if self.order.label != rule.order_id or not self._one_per_pass:
            raise UserInputError(
                f"policy '{self.spec}': '{rule.id}' chooses the positions itself and needs order "
                f"'{rule.order_id}' without a commit rule; write '{rule.order_id}+{rule.spec}'"
            )

    @property
    def _one_per_pass(self) -> bool:
        return isinstance(self.commit, Top) and self.commit.k == 1

    @property
    def _rules(self) -> str:
        parts = [] if self._one_per_pass else [self.commit.spec]
        parts += [rule.spec for rule in (self.revise, self.search) if rule is not None]
        return "".join(f"+{part}" for part in parts)

    @property
    def needs_target(self) -> bool:
        """Whether the order needs the target, so that it cannot generate."""
        return isinstance(self.order, OracleOrder)

    @property
    def needs(self) -> frozenset[str]:
        """Names of the extra inputs that the rules need."""
        return self.order.needs | self.commit.needs

    @property
    def looks_ahead(self) -> bool:
        """Whether the policy evaluates look-ahead states."""
        after = self.order.needs & AFTER or AFTER_SETS in self.commit.needs
        return bool(after) or (self.revise is not None and self.revise.judges_apart)

    @property
    def is_static(self) -> bool:
        """Whether the path and its passes are known without the model."""
        return (
            isinstance(self.order, StaticOrder) and isinstance(self.commit, Schedule) and self.revise is None
        )

    @property
    def is_planned_by_revise(self) -> bool:
        """Whether the revise rule chooses all positions; order and commit rule are then not used."""
        return self.revise is not None and self.revise.order_id is not None

    def draws_first(self, temperature: float) -> bool:
        """Whether tokens are drawn at every masked position before positions are chosen."""
        return temperature > 0 and isinstance(self.order, DrawingOrder) and self.order.draws_first

    def speculates_by(self, temperature: float) -> Reading | None:
        """Return the statistic whose largest value decides the next position; None for other rules.

        A static order has one row per pass, so any statistic will do.
        """
        if not self._one_per_pass or self.revise is not None or self.needs:
            return None
        if isinstance(self.order, StaticOrder):
            return "top"
        if isinstance(self.order, DrawingOrder) and self.draws_first(temperature):
            return self.order.draw_reads
        return self.order.reads if isinstance(self.order, ConfidenceOrder) else None

    def likelihood(self, temperature: float | None = None) -> Likelihood:
        """Return whether the sum of log q is the likelihood of the policy's sampler at temperature 1.

        ``exact``: a deterministic rule without the target chooses its sets from the revealed text, so the sum
            is
        the exact log-likelihood (DUEL, arXiv 2603.01367). ``estimate``: a randomised rule gives the
        likelihood along one path, to be averaged over seeds. ``none``: a target-aware order, a revised text,
        a choice among drawn tokens or among paths.

        Args:
            temperature: temperature of a generated trace; None for a scored trace.
        """
        chosen = self.revise is not None or self.search is not None or self.draws_first(temperature or 0.0)
        chosen = chosen or (AFTER_SETS in self.commit.needs and bool(temperature))
        if self.needs_target or chosen:
            return "none"
        return "estimate" if self.order.randomised or self.commit.randomised else "exact"

    def planned(self, n_positions: int, sample_id: str, block: int) -> tuple[IntArray, IntArray]:
        """Return a static order's path over a block's masked positions, and the pass of each step.

        If the commit rule needs the model, the passes assume one position per pass.
        """
        assert isinstance(self.order, StaticOrder)
        path = check_path(self.order, n_positions, sample_id, block)
        schedule = self.commit if isinstance(self.commit, Schedule) else Top(1)
        return schedule.plan(path)

    def refuse_to_generate(self) -> None:
        """Refuse a policy that cannot generate."""
        if self.needs_target:
            raise UserInputError(
                f"order '{self.spec}' needs the target and cannot generate; use it with score"
            )

    @property
    def n_paths(self) -> int:
        """Number of paths that are decoded per text."""
        return 1 if self.search is None else self.search.n

    def refuse_equal_paths(self, temperature: float) -> None:
        """Refuse a search rule whose paths would all be the same."""
        if self.search is not None and self.search.compares_draws and temperature == 0:
            raise UserInputError(
                f"policy '{self.spec}': '{self.search.id}' compares drawn texts; use a temperature > 0"
            )
        if self.n_paths > 1 and self.seed is None and temperature == 0:
            raise UserInputError(
                f"policy '{self.spec}' at temperature 0 decodes {self.n_paths} equal paths; "
                "use a temperature > 0, or an order with a seed such as random"
            )

    def refuse_to_keep_states(self) -> None:
        """Refuse a policy whose states in every pass are not those of one path."""
        if self.search is not None:
            raise UserInputError(
                f"policy '{self.spec}' decodes several paths per text, and states are recorded for one; "
                "leave out --states or this policy"
            )

    def paths(self, temperature: float) -> list[tuple[Policy, str]]:
        """Return the policy of each path of the search rule, and the key of its random numbers.

        Path m takes the order's seed plus m; without a seed, paths differ by their draws. Path 0 is the
        policy without its search rule.
        """
        assert self.search is not None
        self.refuse_equal_paths(temperature)
        one = replace(self, search=None)
        if one.seed is None:
            return [(one, f"{one.spec}/{m}" if m else one.spec) for m in range(self.search.n)]
        seeded = [one.with_seed(one.seed + m) for m in range(self.search.n)]
        return [(policy, policy.spec) for policy in seeded]

    def with_seed(self, seed: int) -> Policy:
        """Return the policy with another seed of its order, or of its commit rule if the order has none."""
        if self.order.seed is None:
            return replace(self, rule_seed=seed)
        return replace(self, order=self.order.with_seed(seed))

    def refuse_to_score(self) -> None:
        """Refuse a policy that cannot score a fixed text."""
        if self.search is not None:
            raise UserInputError(
                f"policy '{self.spec}' chooses among several texts, so it cannot score a fixed one; "
                f"score with '{replace(self, search=None).spec}' or use it with generate"
            )
        if self.revise is not None:
            raise UserInputError(
                f"policy '{self.spec}' changes committed tokens, so a fixed text has no path "
                f"under it; score with '{replace(self, revise=None).spec}' or use it with generate"
            )
