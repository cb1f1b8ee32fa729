"""The paper's C4 experiments as a plan: presets and parts. Does not depend on models.

``full`` is the paper's protocol with our controls (8 random seeds, both selection rules of max-prob).
``demo`` runs every stage on few texts and adds questions, whose short answers show how orders place EOS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from orderlens.analysis import paper
from orderlens.decode.generate import GenerationSettings
from orderlens.errors import UserInputError
from orderlens.metrics.external import DEFAULT_EVALUATOR, OFFLINE_EVALUATOR
from orderlens.registry import refuse_unknown
from orderlens.studies.external import is_bundled
from orderlens.studies.plan import EXTERNAL, RESULTS, Plan, RunPart

GENERATED = paper.orders("decoding")
SWEPT = (*GENERATED, "max-prob:select=argmax")
"""At T > 0 max-prob has two variants: compare sampled tokens, or choose the position first, then sample."""
ORACLES = ("oracle-max-q", "oracle-margin", "oracle-min-q")


def scored_orders(random_seeds: int) -> tuple[str, ...]:
    """Return the scored orders: the paper's six, the confidence-first rules, and several random seeds."""
    drawn = tuple(f"random:{seed}" for seed in range(random_seeds))
    return ("forced-ar", "reverse-ar", *drawn, "max-prob", "top-margin", *ORACLES)


@dataclass(frozen=True, kw_only=True)
class ReplicatePlan(Plan):
    """What a replication computes.

    Attributes:
        preset: demo, quick or full.
        questions: number of bundled word problems to answer as well; their answers end early, with EOS.
        answer_tokens: tokens generated after a question.
        parallel: policies that commit several tokens per pass; the questions are answered with them too.
        score_orders: orders of the fixed-sequence stage.
        generate_orders: orders of greedy generation.
        sweep_orders: orders of the temperature sweep.
        temperatures: of the sweep, all above 0; T = 0 is the greedy stage.
        measured_texts: texts on which noise floor and circulation are measured.
        measured_orders: orders on which they are measured.
        circulation_pairs: adjacent swaps per measured text and order.
    """

    preset: str
    target_tokens: int = 128
    block_size: int = 32
    questions: int = 0
    answer_tokens: int = 32
    parallel: tuple[str, ...] = ()
    score_orders: tuple[str, ...] = scored_orders(8)
    generate_orders: tuple[str, ...] = GENERATED
    sweep_orders: tuple[str, ...] = SWEPT
    temperatures: tuple[float, ...] = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5, 2.0)
    measured_texts: int = 16
    measured_orders: tuple[str, ...] = ("forced-ar", "random:0")
    circulation_pairs: int = 16

    study: ClassVar[str] = "replication"
    command: ClassVar[str] = "replicate"
    file: ClassVar[str] = paper.PLAN_FILE
    stages: ClassVar[tuple[str, ...]] = (
        *("questions", "score", "measure", "generate", "sweep"),
        *(EXTERNAL, RESULTS),
    )
    generating: ClassVar[tuple[str, ...]] = ("generate", "sweep")
    cpu_batch: ClassVar[int] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(questions=0, answer_tokens=1)
        for value in self.temperatures:
            if not 0 < value < math.inf:
                raise UserInputError(f"temperature {value:g} of the sweep must be a finite number above 0")
            GenerationSettings(self.target_tokens, value)  # check before scoring starts

    def parts(self) -> list[RunPart]:
        """Return the runs of all stages."""
        scored = self.n_texts * self.target_tokens * len(self.score_orders)
        measuring = {"texts": self.measured_texts, "circulation_pairs": self.circulation_pairs}
        found = [
            self._answering("questions", "answering questions at T = 0", self.generate_orders),
            self._answering("parallel", "answering with several tokens per pass", self.parallel),
            RunPart("score", "score", "scoring fixed targets", "score", self.score_orders, scored),
            RunPart(
                "measure",
                "measure",
                "measuring the noise floor",
                "measure",
                self.measured_orders,
                0,
                measuring,
            ),
            self._generating("generate", "generating at T = 0", self.generate_orders, (0.0,)),
            self._generating("sweep", "sweeping temperatures", self.sweep_orders, self.temperatures),
        ]
        return [part for part in found if part is not None]

    def _answering(self, folder: str, label: str, orders: tuple[str, ...]) -> RunPart | None:
        """Return the part that answers bundled word problems, whose answers end before the canvas does."""
        if not self.questions or not orders:
            return None
        tokens, settings = self.answer_tokens, self._settings(self.answer_tokens, (0.0,))
        tokens *= self.questions * len(orders)
        return RunPart("questions", folder, label, "generate", orders, tokens, settings, self.questions)

    def _generating(
        self, name: str, label: str, orders: tuple[str, ...], temperatures: tuple[float, ...]
    ) -> RunPart | None:
        if not temperatures:
            return None
        tokens = self.n_texts * self.target_tokens * len(orders) * len(temperatures)
        settings = self._settings(self.target_tokens, temperatures)
        return RunPart(name, name, label, "generate", orders, tokens, settings)

    def _settings(self, tokens: int, temperatures: tuple[float, ...]) -> dict[str, Any]:
        drawn = {"temperatures": temperatures, "seed": self.seed}
        return {"max_new_tokens": tokens, "stop_at_eos": False, **drawn}

    def facts(self) -> str:
        """Return in one sentence what is computed."""
        warm = "".join(f", {value:g}" for value in self.temperatures)
        many = f", also with {' and '.join(self.parallel)}" if self.parallel else ""
        answered = f" and {self.questions} questions (T = 0 only{many})" if self.questions else ""
        return (
            f"Model {self.model}; data {Path(self.data).name}; preset {self.preset}: up to "
            f"{self.n_texts} texts chosen by hash of their id{answered}, {self.prefix_tokens} + "
            f"{self.target_tokens} tokens, blocks of {self.block_size}, one token per step, no early stop; "
            f"T = 0{warm}."
        )


PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "n_texts": 6,
        "questions": 6,
        "parallel": ("max-prob+threshold=0.9", "max-prob+top=4"),
        "target_tokens": 64,
        "score_orders": scored_orders(3),
        "temperatures": (0.5, 1.0),
        "measured_texts": 2,
        "measured_orders": ("random:0",),
        "circulation_pairs": 40,
        "batch_size": 6,
    },
    "quick": {"n_texts": 100},
    "full": {"n_texts": 1000, "measured_texts": 64},
}


def demo_model() -> str:
    """Return the model of the demo: the bundled one, or the exact control where it is missing."""
    return "tiny" if is_bundled("tiny") else "hmm"


def choose_evaluator(wanted: str, model: str) -> str:
    """Return the evaluator that ``auto`` means: the paper's for hub models, the bundled one otherwise."""
    if wanted != "auto":
        return wanted
    return DEFAULT_EVALUATOR if model.startswith("hf:") else OFFLINE_EVALUATOR


def make_plan(preset: str, model: str, data: str | None = None, **changes: Any) -> ReplicatePlan:
    """Return the plan of a preset.

    Args:
        preset: ``demo``, ``quick`` or ``full``.
        model: spec of the model.
        data: file or built-in name; ``passages`` for the demo, else ``c4``.
        changes: fields that override the preset's; None keeps them. The evaluator ``auto`` is chosen here.
    """
    refuse_unknown("preset", preset, PRESETS)
    given = {name: value for name, value in changes.items() if value is not None}
    given["evaluator"] = choose_evaluator(given.get("evaluator", "auto"), model)
    source = data or ("passages" if preset == "demo" else "c4")
    return ReplicatePlan(**{"preset": preset, "model": model, "data": source, **PRESETS[preset], **given})
