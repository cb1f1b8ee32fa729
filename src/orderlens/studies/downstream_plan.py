"""The paper's downstream experiments as a plan: four benchmarks under four orders, graded by its rules.

``full`` is the paper's protocol: 23,713 items under four orders are its 94,852 generations. ``demo`` answers
the bundled tasks. Does not depend on models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from orderlens.analysis import paper
from orderlens.decode.generate import GenerationSettings
from orderlens.errors import counted
from orderlens.registry import refuse_unknown
from orderlens.studies.plan import RESULTS, Plan, RunPart

ITEMS = {"hellaswag": 10042, "cmath": 1098, "mmlu-pro": 12032, "ifeval": 541}
"""The paper's benchmarks and their numbers of items."""
GRADERS = {
    "hellaswag": "likelihood-token",
    "cmath": "literal-number",
    "mmlu-pro": "last-line-only",
    "ifeval": "strict",
}
"""The paper's grading rules by task."""
PROMPTS = {"mmlu-pro": "opencompass"}
"""The paper's prompts, where they are not the task's own."""
MAX_NEW_TOKENS = 16_384


@dataclass(frozen=True, kw_only=True)
class DownstreamPlan(Plan):
    """What a downstream study computes.

    Attributes:
        preset: demo, quick or full.
        tasks: the benchmarks, one run each.
        n_items: items per task; 0 for all.
        max_new_tokens: maximum number of tokens per response; EOS ends it earlier.
        orders: the orders, one token per step at temperature 0.
        sources: local files, TASK=FILE; other tasks are read from the hub.
    """

    preset: str
    data: str = ""
    block_size: int = 32
    tasks: tuple[str, ...] = tuple(ITEMS)
    n_items: int = 0
    max_new_tokens: int = MAX_NEW_TOKENS
    orders: tuple[str, ...] = paper.orders("decoding")
    sources: tuple[str, ...] = ()

    study: ClassVar[str] = "downstream study"
    command: ClassVar[str] = "replicate --study downstream"
    file: ClassVar[str] = "downstream.json"
    stages: ClassVar[tuple[str, ...]] = ("evaluate", RESULTS)
    generating: ClassVar[tuple[str, ...]] = ()
    has_texts: ClassVar[bool] = False
    movable: ClassVar[tuple[str, ...]] = (*Plan.movable, "sources")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(n_items=0)
        GenerationSettings(self.max_new_tokens)  # check before anything is written

    def parts(self) -> list[RunPart]:
        """Return one run per task."""
        return [self._answering(task) for task in self.tasks]

    def _answering(self, task: str) -> RunPart:
        files = dict(pair.split("=", 1) for pair in self.sources)
        settings: dict[str, Any] = {
            "tasks": [task],
            "limit": self.n_items or None,
            "max_new_tokens": self.max_new_tokens,
            "temperature": 0.0,
            "seed": self.seed,
            "chat": True,
        }
        for name, known in (("sources", files), ("graders", GRADERS), ("prompts", PROMPTS)):
            settings[name] = {task: known[task]} if task in known else None
        tokens = self.texts_of(task) * self.max_new_tokens
        label = f"answering {task}"
        return RunPart("evaluate", task, label, "evaluate", self.orders, tokens, settings)

    def texts_of(self, task: str) -> int:
        """Return the number of responses of a task, at most."""
        items = ITEMS.get(task, self.n_items or 100)
        return len(self.orders) * (min(items, self.n_items) if self.n_items else items)

    def facts(self) -> str:
        """Return in one sentence what is computed."""
        texts = sum(map(self.texts_of, self.tasks))
        return (
            f"Model {self.model}; preset {self.preset}: {', '.join(self.tasks)} under "
            f"{', '.join(self.orders)}; up to {counted(texts, 'response')} of at most "
            f"{self.max_new_tokens:,} tokens; T = 0, EOS ends a response, no correction."
        )


PRESETS: dict[str, dict[str, Any]] = {
    "demo": {"tasks": ("arith", "choice"), "n_items": 24, "max_new_tokens": 128},
    "quick": {"n_items": 100},
    "full": {},
}


def make_downstream_plan(
    preset: str, model: str, sources: Sequence[str] = (), **changes: Any
) -> DownstreamPlan:
    """Return the plan of a preset; ``changes`` override its fields, and None keeps them."""
    refuse_unknown("preset", preset, PRESETS)
    given = {name: value for name, value in changes.items() if value is not None}
    chosen = {"preset": preset, "model": model, "sources": tuple(sources), **PRESETS[preset], **given}
    plan = DownstreamPlan(**chosen)
    for pair in plan.sources:
        refuse_unknown("task of this study", pair.partition("=")[0], plan.tasks)
    return plan
