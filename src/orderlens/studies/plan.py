"""Plans: what a study computes, as data, and the record in its folder that a resumed study must match.

A plan lists the parts of the study; the runner computes them. Does not depend on models or runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from orderlens.common.files import write_text
from orderlens.errors import RunError, UserInputError
from orderlens.metrics.external import OFFLINE_EVALUATOR
from orderlens.registry import refuse_unknown
from orderlens.texts.rows import TextSplit, check_split

GPU_BATCH = 256
"""Texts per work unit on a GPU: with four or more orders, over 1,000 sequences in parallel."""
RESULTS = "results"
"""The last stage of every study: tables, figures and findings, which need no model."""
EXTERNAL = "external"
"""The stage in which an autoregressive evaluator scores the generated texts."""


@dataclass(frozen=True, slots=True)
class RunPart:
    """One run folder of a study.

    Attributes:
        stage: the stage that fills it.
        folder: its name below ``runs``.
        label: of its progress bar.
        kind: the job: score, generate, evaluate, or measure (noise floor and circulation).
        orders: specs of the policies.
        tokens: tokens to reveal at most; 0 where they are not counted.
        settings: further arguments of the job.
        questions: number of bundled word problems that are decoded instead of the texts.
    """

    stage: str
    folder: str
    label: str
    kind: Literal["score", "generate", "evaluate", "measure"]
    orders: tuple[str, ...]
    tokens: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    questions: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides the numbers of a study; each study adds its own fields.

    Attributes:
        model: spec of the model under study.
        data: file or built-in name of the texts.
        n_texts: texts wanted, chosen by hash of their id.
        prefix_tokens: tokens of prompt.
        target_tokens: tokens scored, and generated.
        block_size: tokens per block; 0 is the model's own.
        evaluator: autoregressive evaluator of the generated texts.
        seed: of the token draws above temperature 0.
        batch_size: texts per work unit; 0 leaves the choice to the model and the device.
        split: what is one text in a ``.txt`` file.
    """

    model: str
    data: str = "passages"
    n_texts: int = 24
    prefix_tokens: int = 32
    target_tokens: int = 64
    block_size: int = 0
    evaluator: str = OFFLINE_EVALUATOR
    seed: int = 0
    batch_size: int = 0
    split: TextSplit = "none"

    study: ClassVar[str]
    """What messages call the study."""
    command: ClassVar[str]
    """The command that starts it."""
    has_texts: ClassVar[bool] = True
    """Whether it decodes the texts of ``data``, not only tasks."""
    movable: ClassVar[tuple[str, ...]] = ("evaluator", "batch_size")
    """Fields that may differ between two calls."""
    file: ClassVar[str]
    """Name of the record in its folder."""
    word: ClassVar[str] = "stage"
    """What the command line calls a stage."""
    stages: ClassVar[tuple[str, ...]]
    """All stages in their usual order; ``results`` is the last."""
    generating: ClassVar[tuple[str, ...]]
    """Stages whose texts the evaluator scores."""
    cpu_batch: ClassVar[int] = 0
    """Texts per work unit on a processor; 0 leaves the choice to the run."""

    def __post_init__(self) -> None:
        self.refuse_below(n_texts=1, prefix_tokens=0, target_tokens=1, block_size=0, batch_size=0)
        check_split(self.split)

    def refuse_below(self, **least: int) -> None:
        """Refuse a field below its least value."""
        for name, value in least.items():
            if getattr(self, name) < value:
                raise UserInputError(f"{name}={getattr(self, name)} must be at least {value}")

    def parts(self) -> list[RunPart]:
        """Return the parts with forward passes of the model; a stage may have none or several."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Return what a reader should know about the choice of parts, a sentence each."""
        return []

    def parts_of(self, stage: str) -> list[RunPart]:
        """Return the parts of one stage."""
        return [part for part in self.parts() if part.stage == stage]

    def tokens_of(self, stage: str) -> int:
        """Return the maximum number of tokens that a stage reveals."""
        return sum(part.tokens for part in self.parts_of(stage))

    @classmethod
    def in_order(cls, stages: Iterable[str] | None = None) -> list[str]:
        """Return the given stages in their usual order, all by default; an unknown one is refused."""
        wanted = [name for name in (cls.stages if stages is None else stages) if name]
        if not wanted:
            raise UserInputError(f"--{cls.word}s is empty; choose from {', '.join(cls.stages)}")
        for name in wanted:
            refuse_unknown(cls.word, name, cls.stages)
        return [name for name in cls.stages if name in wanted]

    @classmethod
    def model_stages(cls) -> tuple[str, ...]:
        """Return the stages with forward passes of the model; they may run in any order and in parallel."""
        return tuple(name for name in cls.stages if name not in (EXTERNAL, RESULTS))

    def record(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the plan that ``record`` wrote; lists become tuples."""
        given: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item for name, item in record.items()
        }
        return cls(**given)


PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True, slots=True)
class Stored(Generic[PlanT]):
    """What the record in a study's folder holds.

    Attributes:
        plan: the plan as it is run.
        data: the record of its texts, with a digest of their tokens.
        model: name and digest of the model.
    """

    plan: PlanT
    data: dict[str, Any]
    model: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write or replace the record; missing folders are made."""
        record = {"plan": self.plan.record(), "data": self.data, "model": self.model}
        write_text(folder / self.plan.file, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_plan(folder: Path, kind: type[PlanT]) -> Stored[PlanT] | None:
    """Return the record of a study's folder, None for a new or empty folder.

    Raises:
        RunError: the record is damaged, or the folder holds something else.
    """
    path = folder / kind.file
    if not path.is_file():
        _refuse_foreign(folder, kind.study)
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Stored(kind.from_record(record["plan"]), dict(record["data"]), dict(record["model"]))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, UserInputError) as error:
        raise RunError(f"{path} is damaged ({error}); choose a new folder") from None


def stored_plan(folder: Path, kind: type[PlanT]) -> Stored[PlanT]:
    """Return the record of a folder in which a study was started."""
    found = read_plan(folder, kind)
    if found is None:
        raise RunError(
            f"{folder} holds no {kind.study}; start one with orderlens {kind.command} --out {folder}"
        )
    return found


def resumed_plan(folder: Path, plan: PlanT) -> Stored[PlanT] | None:
    """Return the record that ``plan`` continues, None for a new folder.

    Where the work is done may change between two calls: the folder of the data file, the device and the
    batch size (that of the first call is kept), the evaluator (its scores have a separate folder).

    Raises:
        RunError: the folder was started with another plan; the message names what differs.
    """
    stored = read_plan(folder, type(plan))
    if stored is None:
        return None
    refuse_other(folder, stored.plan, plan)
    moved = {name: getattr(plan, name) for name in plan.movable if name != "batch_size"}
    return replace(stored, plan=replace(stored.plan, **moved))


def refuse_other(folder: Path, old: Plan, new: Plan) -> None:
    """Refuse to continue with another plan; of ``data`` only the file's name counts."""
    for name in (item.name for item in fields(old) if item.name not in old.movable):
        before, now = getattr(old, name), getattr(new, name)
        if name == "data":
            before, now = Path(before).name, Path(now).name
        if before != now:
            raise RunError(
                f"{folder} holds a {new.study} with another {name} ({_difference(before, now)}); "
                "choose a new folder or the same options"
            )


def _refuse_foreign(folder: Path, what: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose a new folder")
    names = sorted(item.name for item in folder.iterdir() if item.name[0] != ".") if folder.exists() else []
    if names:
        raise RunError(
            f"{folder} is not empty and holds no {what} ({names[0]}, …); choose a new or an empty folder"
        )


def _difference(before: Any, now: Any) -> str:
    """Say what differs; of long lists only the entries that differ."""
    if not isinstance(before, tuple) or set(before) == set(now):
        return f"{_shown(before)}, now {_shown(now)}"
    missing = tuple(entry for entry in now if entry not in before)
    extra = tuple(entry for entry in before if entry not in now)
    parts = [f"without {_shown(missing)}"] if missing else []
    return "; ".join([*parts, f"with {_shown(extra)}, not in this request"] if extra else parts)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
