"""Plan of a frontier: quality of policies against compute, on fixed texts, generated texts and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from orderlens.errors import UserInputError
from orderlens.rules import Policy, parse_policies, parse_policy
from orderlens.studies.plan import Plan, RunPart
from orderlens.tasks.catalogue import get_task


@dataclass(frozen=True, kw_only=True)
class FrontierPlan(Plan):
    """What a frontier computes.

    Attributes:
        policies: canonical specs, the ladder's among them.
        tasks: benchmarks to answer.
        n_items: items per task.
        couplings: jointly committed sets per text and policy that are re-scored one token at a time.
        temperature: of the generated texts and answers.
    """

    policies: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    n_items: int = 24
    couplings: int = 4
    temperature: float | str = 0.0

    study: ClassVar[str] = "frontier"
    command: ClassVar[str] = "frontier"
    file: ClassVar[str] = "frontier.json"
    word: ClassVar[str] = "part"
    stages: ClassVar[tuple[str, ...]] = ("likelihood", "text", "tasks", "external", "results")
    generating: ClassVar[tuple[str, ...]] = ("text",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(n_items=1, couplings=0)

    def scorable(self) -> list[Policy]:
        """Return the policies under which a fixed text has a path: those without a revise or search rule."""
        return [policy for policy in parse_policies(self.policies) if not (policy.revise or policy.search)]

    def deployable(self) -> list[Policy]:
        """Return the policies that can generate: those that need no target."""
        return [policy for policy in parse_policies(self.policies) if not policy.needs_target]

    def parts(self) -> list[RunPart]:
        """Return the runs of fixed texts, generated texts and tasks, each where there is something to do."""
        scored, made = (tuple(item.spec for item in kept) for kept in (self.scorable(), self.deployable()))
        tokens = self.n_texts * self.target_tokens
        settings = {
            "max_new_tokens": self.target_tokens,
            "temperatures": (self.temperature,),
            "seed": self.seed,
            "stop_at_eos": True,
        }
        fixed = RunPart(
            *("likelihood", "score", "scoring fixed texts", "score", scored),
            len(scored) * tokens,
            {"couplings": self.couplings},
        )
        text = RunPart("text", "generate", "generating texts", "generate", made, len(made) * tokens, settings)
        answers = self.n_items * sum(get_task(name).max_new_tokens for name in self.tasks)
        tasks = RunPart(
            *("tasks", "evaluate", "answering tasks", "evaluate", made),
            len(made) * answers,
            self._answering(),
        )
        return [*([fixed] if scored else []), text, *([tasks] if self.tasks else [])]

    def _answering(self) -> dict[str, Any]:
        items = {"tasks": list(self.tasks), "limit": self.n_items, "max_new_tokens": None}
        drawn = {"temperature": self.temperature, "seed": self.seed}
        return {**items, **drawn, "sources": None, "graders": None, "chat": True, "overflow": "fill"}

    def size(self, stages: Iterable[str]) -> str:
        """Return the number of tokens of the given stages as text; empty if they decode nothing."""
        found = {name: self.tokens_of(name) for name in stages}
        listed = ", ".join(f"{name} {count:,}" for name, count in found.items() if count)
        return f"{len(self.policies)} policies; tokens to reveal at most: {listed}" if listed else ""

    def notes(self) -> list[str]:
        """Return notes on policies and parts that are left out."""
        everything = {policy.spec for policy in parse_policies(self.policies)}
        out = [] if self.tasks else ["No tasks were requested (--tasks)."]
        for part, kept, why in (
            (
                "likelihood",
                self.scorable(),
                "they revise tokens or choose among texts, so a fixed text has no path",
            ),
            ("text and tasks", self.deployable(), "they need the target and cannot generate"),
        ):
            missing = sorted(everything - {policy.spec for policy in kept})
            out += [f"Left out of {part}: {', '.join(missing)} ({why})."] if missing else []
        return out


def with_ladder(policies: str | Sequence[str], order: str, rungs: Sequence[int]) -> tuple[str, ...]:
    """Return the canonical specs of the ladder's rungs and the policies, each once.

    Args:
        policies: specs or presets, as a list or separated by commas; may be empty.
        order: the ladder's order; empty for no ladder.
        rungs: its numbers of tokens per pass.
    """
    if any(rung < 1 for rung in rungs):
        raise UserInputError(f"rung {min(rungs)} of the ladder must be at least 1 token per pass")
    steps = [f"{order}+top={rung}" for rung in sorted(set(rungs))] if order else []
    given = policies.split(",") if isinstance(policies, str) else list(policies)
    named = [name.strip() for name in given if name.strip()]
    wanted = [parse_policy(name) for name in (*steps, *named)]
    found = tuple(dict.fromkeys(policy.spec for policy in wanted))
    if len(found) < 2:
        raise UserInputError("a frontier needs at least two policies: give --policies or a --ladder")
    return found
