"""What a frontier computes, and the record in its folder that a resumed one must match. Knows no model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from orderlens.errors import RunError, StorageError, UnknownNameError, UserInputError
from orderlens.files import write_text
from orderlens.policies import Policy, parse_policies, parse_policy
from orderlens.registry import suggest
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
        least = {"n_texts": 1, "prefix_tokens": 0, "target_tokens": 1, "n_items": 1, "couplings": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise UserInputError(f"{name}={getattr(self, name)} must be at least {value}")

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
    for name in asked:
        if name not in PARTS:
            raise UnknownNameError(f"unknown part '{name}'{suggest(name, PARTS)} (known: {', '.join(PARTS)})")
    if not asked:
        raise UserInputError(f"--parts names nothing; choose out of {', '.join(PARTS)}")
    return [name for name in PARTS if name in asked]


def read_plan(folder: Path) -> Plan:
    """Return the plan that ``folder`` was started with."""
    path = folder / PLAN_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name for item in fields(Plan)}
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found["plan"].items()
            if name in known
        }
        return Plan(**given)
    except FileNotFoundError:
        raise RunError(
            f"{folder} holds no frontier; start one with orderlens frontier --out {folder}"
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); choose a new folder") from None


def keep_plan(folder: Path, plan: Plan) -> None:
    """Write the plan into a new folder, or refuse one that was started with another.

    Raises:
        RunError: the folder holds something else; the message names what differs.
    """
    path = folder / PLAN_FILE
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is not empty and holds no frontier; choose a new or an empty folder")
        _write(path, plan)
        return
    old = read_plan(folder)
    for item in fields(Plan):
        before, now = getattr(old, item.name), getattr(plan, item.name)
        if item.name == "data":  # the folder of a file is another on another machine
            before, now = Path(before).name, Path(now).name
        if item.name != "evaluator" and before != now:
            raise RunError(
                f"{folder} holds a frontier with another value of {item.name} ({_difference(before, now)}); "
                "choose a new folder or the same options"
            )
    if old != plan:  # another evaluator: its scores have a folder of their own
        _write(path, plan)


def _difference(before: Any, now: Any) -> str:
    """Say what was asked for otherwise; of long lists only the entries that differ."""
    if not isinstance(before, tuple) or set(before) == set(now):
        return f"{_shown(before)}, asked for {_shown(now)}"
    missing = tuple(entry for entry in now if entry not in before)
    extra = tuple(entry for entry in before if entry not in now)
    parts = [f"without {_shown(missing)}"] if missing else []
    return "; ".join([*parts, f"with {_shown(extra)}, not asked for"] if extra else parts)


def _write(path: Path, plan: Plan) -> None:
    record: dict[str, Any] = {"plan": asdict(plan)}
    try:
        write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise StorageError(f"cannot write to {path.parent}: {error.strerror or error}") from error


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
