"""What a frontier computes, and the record in its folder that a resumed one must match. Knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from orderlens.errors import RunError, UserInputError
from orderlens.rules import Policy, parse_policies, parse_policy
from orderlens.studies.plans import (
    from_record,
    read_file,
    refuse_below,
    refuse_other,
    steps_in_order,
    write_file,
)
from orderlens.tasks.catalogue import get_task

PLAN_FILE = "frontier.json"
PARTS = ("likelihood", "text", "tasks", "external", "results")
"""Exact likelihood of fixed texts; generated texts; answers to tasks; the texts scored by an evaluator; and
tables, figures and findings, which need no model."""
DECODING = PARTS[:-1]
RUNS = {"likelihood": "score", "text": "generate", "tasks": "evaluate"}
"""Run folders of the parts below ``runs``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the numbers.

    Attributes:
        model: spec of the model.
        policies: canonical specs, the ladder's among them.
        data: file or built-in name of the texts.
        n_texts: texts wanted, chosen by hash of their id.
        prefix_tokens: tokens of prompt.
        target_tokens: tokens scored, and generated.
        tasks: benchmarks to answer.
        n_items: items per task.
        couplings: sets per text and policy that are revealed one by one.
        evaluator: autoregressive evaluator of the generated texts.
        temperature: of the generated texts and answers.
        seed: of the token draws above temperature 0.
        block_size: tokens per block; 0 is the model's own.
    """

    model: str
    policies: tuple[str, ...]
    data: str = "passages"
    n_texts: int = 24
    prefix_tokens: int = 32
    target_tokens: int = 64
    tasks: tuple[str, ...] = ()
    n_items: int = 24
    couplings: int = 4
    evaluator: str = "tiny-ar"
    temperature: float = 0.0
    seed: int = 0
    block_size: int = 0

    def __post_init__(self) -> None:
        refuse_below(self, n_texts=1, prefix_tokens=0, target_tokens=1, n_items=1, couplings=0)

    def scorable(self) -> list[Policy]:
        """Return the policies under which a fixed text has a path: those that change nothing afterwards."""
        return [policy for policy in parse_policies(self.policies) if policy.revise is None]

    def deployable(self) -> list[Policy]:
        """Return the policies that can generate: those that need no target."""
        return [policy for policy in parse_policies(self.policies) if not policy.needs_target]

    def reveals(self, part: str) -> int:
        """Return how many tokens a part reveals at most; 0 for those that decode nothing."""
        if part == "tasks":
            answers = sum(self.n_items * get_task(name).max_new_tokens for name in self.tasks)
            return len(self.deployable()) * answers
        policies = {"likelihood": self.scorable, "text": self.deployable}.get(part, list)()
        return len(policies) * self.n_texts * self.target_tokens

    def size(self, parts: Iterable[str]) -> str:
        """Say what the decoding parts amount to, in tokens; empty where there are none."""
        found = {name: self.reveals(name) for name in parts}
        told = ", ".join(f"{name} {count:,}" for name, count in found.items() if count)
        return f"{len(self.policies)} policies; tokens to reveal at most: {told}" if told else ""

    def notes(self) -> list[str]:
        """Say which policies a part leaves out."""
        everything = {policy.spec for policy in parse_policies(self.policies)}
        out = []
        for part, kept, why in (
            ("likelihood", self.scorable(), "they change tokens afterwards: a fixed text has no path"),
            ("text and tasks", self.deployable(), "they need the target and cannot generate"),
        ):
            missing = sorted(everything - {policy.spec for policy in kept})
            out += [f"left out of {part}: {', '.join(missing)} ({why})"] if missing else []
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
    asked = [name.strip() for name in given if name.strip()]
    wanted = [parse_policy(name) for name in (*steps, *asked)]
    found = tuple(dict.fromkeys(policy.spec for policy in wanted))
    if len(found) < 2:
        raise UserInputError("a frontier needs at least two policies: give --policies or a --ladder")
    return found


def check_parts(parts: Iterable[str]) -> list[str]:
    """Return the parts in their order; an unknown one is answered with the nearest known one."""
    asked = [part for part in parts if part]
    if not asked:
        raise UserInputError(f"--parts names nothing; choose out of {', '.join(PARTS)}")
    return steps_in_order("part", asked, PARTS)


def read_plan(folder: Path) -> Plan:
    """Return the plan that ``folder`` was started with."""
    found = _kept(folder)
    if found is None:
        raise RunError(f"{folder} holds no frontier; start one with orderlens frontier --out {folder}")
    return found


def _kept(folder: Path) -> Plan | None:
    return read_file(folder / PLAN_FILE, "frontier", lambda record: from_record(Plan, record["plan"]))


def keep_plan(folder: Path, plan: Plan) -> None:
    """Write the plan into a new folder, or refuse one that was started with another.

    Raises:
        RunError: the folder holds something else; the message names what differs.
    """
    old = _kept(folder)
    if old is not None:
        refuse_other(folder, "frontier", old, plan, ("evaluator",))  # its scores have a folder of their own
    if old != plan:
        write_file(folder / PLAN_FILE, {"plan": asdict(plan)})
