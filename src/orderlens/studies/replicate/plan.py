"""What a replication computes: the presets, and the record that a resumed one must match.

``full`` is the paper's protocol with our controls (8 random seeds, both selection rules of max-prob);
``demo`` keeps every stage but shrinks them until two processor cores finish in minutes, and adds questions,
whose short answers show what orders do with EOS. Knows no model.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orderlens.analysis import paper
from orderlens.analysis.setups import PLAN_FILE
from orderlens.decode.generate import GenerationSettings
from orderlens.errors import UserInputError
from orderlens.metrics.external import DEFAULT_EVALUATOR, OFFLINE_EVALUATOR
from orderlens.registry import refuse_unknown
from orderlens.studies.plans import from_record, read_file, refuse_below, refuse_other, write_file
from orderlens.texts.rowfiles import TextSplit, check_split

GENERATED = paper.orders("decoding")
SWEPT = (*GENERATED, "max-prob:select=argmax")
"""At T > 0 max-prob has two readings: compare drawn tokens, or choose the position first and then draw."""
ORACLES = ("oracle-max-q", "oracle-margin", "oracle-min-q")


def scored_orders(random_seeds: int) -> tuple[str, ...]:
    """Return the scored orders: the paper's six, the confidence-first rules, and several random seeds."""
    drawn = tuple(f"random:{seed}" for seed in range(random_seeds))
    return ("forced-ar", "reverse-ar", *drawn, "max-prob", "top-margin", *ORACLES)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the numbers of a replication.

    Attributes:
        preset: demo, quick or full.
        model: spec of the model under study.
        data: file or built-in name.
        n_sequences: texts wanted, chosen by hash of their id.
        questions: bundled word problems that are answered besides; their answers end early, with EOS.
        answer_tokens: tokens generated after a question.
        together: policies that commit several tokens per pass; the questions are answered with them too.
        budget_s: seconds of decoding after which stages take fewer texts of the list; 0 is no limit.
        prefix_tokens: tokens of prompt.
        target_tokens: tokens scored, and generated.
        block_size: tokens per block.
        score_orders: orders of the fixed-sequence stage.
        generate_orders: orders of greedy generation.
        sweep_orders: orders of the temperature sweep.
        temperatures: of the sweep, all above 0; T = 0 is the greedy stage.
        measured_sequences: texts on which noise floor and circulation are measured.
        measured_orders: orders on which they are measured.
        circulation_pairs: adjacent swaps per measured text and order.
        evaluator: autoregressive evaluator of external perplexity.
        seed: of the token draws at T > 0.
        split: what is one text in a ``.txt`` file.
        batch_size: texts per work unit; 0 leaves the choice to the model, or to ``device_batch``.
    """

    preset: str
    model: str
    data: str
    n_sequences: int
    questions: int = 0
    answer_tokens: int = 32
    together: tuple[str, ...] = ()
    budget_s: float = 0.0
    prefix_tokens: int = 32
    target_tokens: int = 128
    block_size: int = 32
    score_orders: tuple[str, ...] = scored_orders(8)
    generate_orders: tuple[str, ...] = GENERATED
    sweep_orders: tuple[str, ...] = SWEPT
    temperatures: tuple[float, ...] = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5, 2.0)
    measured_sequences: int = 16
    measured_orders: tuple[str, ...] = ("forced-ar", "random:0")
    circulation_pairs: int = 16
    evaluator: str = OFFLINE_EVALUATOR
    seed: int = 0
    batch_size: int = 0
    split: TextSplit = "none"

    def __post_init__(self) -> None:
        refuse_below(self, n_sequences=1, questions=0, answer_tokens=1)
        refuse_below(self, prefix_tokens=0, target_tokens=1, batch_size=0)
        check_split(self.split)
        for value in self.temperatures:
            if not 0 < value < math.inf:
                raise UserInputError(f"temperature {value:g} of the sweep must be a finite number above 0")
            GenerationSettings(self.target_tokens, value)  # refused now, not after hours of scoring

    def orders_of(self, stage: str) -> int:
        """Return how often a stage reveals every token of a text: its orders times its temperatures."""
        warm = len(self.sweep_orders) * len(self.temperatures)
        found = {"score": len(self.score_orders), "generate": len(self.generate_orders), "sweep": warm}
        return found.get(stage, 0)

    def facts(self) -> str:
        """Return in one sentence what is computed."""
        warm = "".join(f", {value:g}" for value in self.temperatures)
        many = f", also with {' and '.join(self.together)}" if self.together else ""
        asked = f" and {self.questions} questions (T = 0 only{many})" if self.questions else ""
        return (
            f"Model {self.model}; data {Path(self.data).name}; preset {self.preset}: up to "
            f"{self.n_sequences} texts chosen by hash of their id{asked}, {self.prefix_tokens} + "
            f"{self.target_tokens} tokens, blocks of {self.block_size}, one token per step, no early stop; "
            f"T = 0{warm}."
        )

    def record(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


DEMO_TEXTS, DEMO_QUESTIONS, DEMO_BUDGET_S = 10, 6, 200.0
"""Passages and questions of the demo, and the seconds after which it takes fewer passages."""
PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "n_sequences": DEMO_TEXTS,
        "questions": DEMO_QUESTIONS,
        "together": ("max-prob+threshold=0.9", "max-prob+top=4"),
        "budget_s": DEMO_BUDGET_S,
        "target_tokens": 64,
        "score_orders": scored_orders(3),
        "temperatures": (0.5, 1.0),
        "measured_sequences": 2,
        "measured_orders": ("random:0",),
        "circulation_pairs": 40,
        "batch_size": 6,
    },
    "quick": {"n_sequences": 100},
    "full": {"n_sequences": 1000, "measured_sequences": 64},
}
CPU_BATCH, GPU_BATCH = 32, 256
"""Texts per work unit; with four or more orders, 256 texts are over 1,000 sequences at once."""


def is_bundled(name: str) -> bool:
    """Whether the weights of a bundled model came with this installation (and torch to run them)."""
    weights = files("orderlens").joinpath(f"models/data/{name}/model.safetensors")
    return weights.is_file() and find_spec("torch") is not None


def demo_model() -> str:
    """Return the model of the demo: the bundled one, or the exact control where it is missing."""
    return "tiny" if is_bundled("tiny") else "hmm"


def choose_evaluator(wanted: str, model: str) -> str:
    """Return the evaluator that ``auto`` means: the paper's for hub models, the bundled one otherwise."""
    if wanted != "auto":
        return wanted
    return DEFAULT_EVALUATOR if model.startswith("hf:") else OFFLINE_EVALUATOR


def device_batch(device: str) -> int:
    """Return how many texts of a small model to decode together: enough to fill a GPU."""
    return GPU_BATCH if device == "cuda" else CPU_BATCH


def make_plan(preset: str, model: str, data: str, **changes: Any) -> Plan:
    """Return the plan of a preset; ``changes`` override its fields, None keeps them."""
    refuse_unknown("preset", preset, PRESETS)
    given = {name: value for name, value in changes.items() if value is not None}
    if "n_sequences" in given:  # a number that was asked for is kept
        given = {"budget_s": 0.0, **given}
    return Plan(**{"preset": preset, "model": model, "data": data, **PRESETS[preset], **given})


@dataclass(frozen=True, slots=True)
class Stored:
    """What ``plan.json`` holds.

    Attributes:
        plan: the plan as it is run.
        data: the record of its texts, with a digest of their tokens.
        model: name and digest of the model.
        sizes: texts that each started stage takes.
    """

    plan: Plan
    data: dict[str, Any]
    model: dict[str, Any]
    sizes: dict[str, int] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the content of ``plan.json``."""
        return {"plan": self.plan.record(), "data": self.data, "model": self.model, "sizes": self.sizes}


def read_plan(folder: Path) -> Stored | None:
    """Return the plan that ``folder`` was started with, None for a new or empty folder."""
    return read_file(folder / PLAN_FILE, "replication", _stored)


def _stored(record: dict[str, Any]) -> Stored:
    plan = from_record(Plan, record["plan"])
    return Stored(plan, dict(record["data"]), dict(record["model"]), dict(record.get("sizes", {})))


def kept_plan(folder: Path, plan: Plan) -> Stored | None:
    """Return what ``folder`` was started with, None for a new folder.

    Where the work is done may change between two calls: the folder of the data file, the device and the
    batch size (the one of the first call is kept), the evaluator (its scores have folders of their own).

    Raises:
        RunError: it was started with another plan; the message names what differs.
    """
    stored = read_plan(folder)
    if stored is None:
        return None
    refuse_other(folder, "replication", stored.plan, plan, ("evaluator", "batch_size", "budget_s"))
    return replace(stored, plan=replace(stored.plan, evaluator=plan.evaluator))


def save_plan(folder: Path, stored: Stored) -> None:
    """Write the plan and what is known of its data and model."""
    write_file(folder / PLAN_FILE, stored.record())
