"""Hours and GPU-hours of the paper's studies from measured speeds, and the serial parts of a large study.

    python benchmarks/capacity.py                # the table of docs/running.md
    python benchmarks/capacity.py --plan 23713   # time and memory of planning this number of prompts,
    measured here

Speeds are those of one H200 and are read from benchmarks/RESULTS.md (LLaDA-2.x mini shape). A study is split
into units as OrderLens does for the number of GPUs, and the last round counts as a full one. Loading the
model is not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import re
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderlens.models.decoder.model import UNIT_SEQUENCES
from orderlens.runs.spec import shared_size
from orderlens.studies.replicate_plan import make_plan

RESULTS = Path(__file__).with_name("RESULTS.md")
_WHOLE = r" \| \d+ s \(([\d,]+)/s[^|]*\) \|"
"""Pattern of the rest of a stage's row, for complete runs of `replicate`."""
_ROWS = {
    "score": r"\n\| score: [\d,]+ states" + _WHOLE,
    "generate": r"\n\| generate at T = 0: [\d,]+ tokens" + _WHOLE,
    "sweep": r"\n\| sweep: [\d,]+ tokens" + _WHOLE,
    "batch 32": r"\n\| 32 \| ([\d,]+) \|",
    "batch 128": r"\n\| 128 \| ([\d,]+) \|",
}
PAPER_ORDERS, GPUS = 4, (1, 8, 64)
SEQUENCES = UNIT_SEQUENCES
DOWNSTREAM = {"hellaswag": 10_042, "cmath": 1_098, "mmlu-pro": 12_032, "ifeval": 541}
"""Items of the paper's downstream study, each answered in four orders."""
DOWNSTREAM_TOKENS = 150_000_000


@dataclass(frozen=True, slots=True)
class Study:
    """The size of a study.

    Attributes:
        name: name in the table.
        texts: number of prompts or fixed texts.
        orders: number of orders per text.
        tokens: total number of revealed tokens.
        speeds: rows of RESULTS.md that bound its speed.
        temperatures: number of temperatures per text.
    """

    name: str
    texts: int
    orders: int
    tokens: int
    speeds: tuple[str, ...]
    temperatures: int = 1

    def units(self, gpus: int) -> int:
        """Return the number of units on ``gpus`` GPUs."""
        size = shared_size(max(1, SEQUENCES // self.orders), self.texts, self.temperatures, gpus)
        return self.temperatures * math.ceil(self.texts / size)

    def hours(self, rate: float, gpus: int) -> float:
        """Return the wall time at ``rate`` tokens per second and GPU, in full rounds of all GPUs."""
        return math.ceil(self.units(gpus) / gpus) * self.tokens / self.units(gpus) / rate / 3600


def studies() -> list[Study]:
    """Return the paper's protocol on C4 with our controls, its sweep, and the downstream tasks."""
    plan = make_plan("full", "hf:inclusionAI/LLaDA2.0-mini", "c4")
    n, length, warm = plan.n_texts, plan.target_tokens, len(plan.temperatures)
    counts = [
        ("C4, six orders scored", 6, ("score",), 1),
        (f"C4, our {len(plan.score_orders)} scored", len(plan.score_orders), ("score",), 1),
        ("C4, four orders generated", len(plan.generate_orders), ("generate",), 1),
        (f"C4, sweep over {warm} temperatures", len(plan.sweep_orders), ("sweep",), warm),
    ]
    found = [Study(name, n, orders, n * t * orders * length, s, t) for name, orders, s, t in counts]
    items = sum(DOWNSTREAM.values())
    bounds = ("batch 32", "sweep")
    return [*found, Study("downstream, four orders", items, PAPER_ORDERS, DOWNSTREAM_TOKENS, bounds)]


def speeds(text: str) -> dict[str, float]:
    """Return tokens per second and GPU by row of RESULTS.md; the last row of a name counts."""
    found = {name: re.findall(pattern, text) for name, pattern in _ROWS.items()}
    missing = [name for name, rates in found.items() if not rates]
    if missing:
        raise SystemExit(f"{RESULTS} no longer has the rows of {', '.join(missing)}: mend _ROWS")
    return {name: float(rates[-1].replace(",", "")) for name, rates in found.items()}


def table() -> None:
    """Print one row per study and speed."""
    known = speeds(RESULTS.read_text(encoding="utf-8"))
    print(
        "| study | tokens | units (1, 8, 64 GPUs) | tokens/s per GPU | 1 GPU | 8 GPUs | 64 GPUs | GPU-hours |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for study in studies():
        for name in study.speeds:
            walls = " | ".join(shown(study.hours(known[name], gpus)) for gpus in GPUS)
            busy = study.tokens / known[name] / 3600
            units = ", ".join(f"{study.units(gpus):,}" for gpus in GPUS)
            size = f"{study.tokens / 1e6:,.2f} M | {units}"
            print(f"| {study.name} | {size} | {known[name]:,.0f} ({name}) | {walls} | {busy:,.2f} |")


def shown(hours: float) -> str:
    """Return a time in words."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours > 1 / 60 else f"{3600 * hours:.0f} s"


def plan(prompts: int) -> None:
    """Print the cost of encoding, splitting, recording and distributing a study of ``prompts`` prompts."""
    import orderlens as ol
    from orderlens.runs.job import generate_job
    from orderlens.runs.options import Computing
    from orderlens.runs.worker import plain_items
    from orderlens.store.writer import open_writer

    took: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        found = work()
        took[name] = round(time.process_time() - start, 2)
        return found

    text = "what a reader asks is not what a writer knows, and so on. " * 4
    samples = [ol.Sample(f"{number:06d}", f"{number} {text}"[:200]) for number in range(prompts)]
    settings = {"max_new_tokens": 16_384, "temperatures": (0.0,), "seed": 0, "stop_at_eos": True}
    orders = ["forced-ar", "max-prob", "top-margin", "random"]
    options = Computing(batch_size=SEQUENCES // PAPER_ORDERS)
    job = timed("encode and cut", lambda: generate_job("hmm", samples, orders, options, **settings))
    items = timed("unit keys", lambda: {unit.key(): (job.spec, unit) for unit in job.units})
    with tempfile.TemporaryDirectory() as out:
        writer = timed("spec and folder", lambda: open_writer(f"{out}/run", job.spec.to_json()))
        timed("what is left", lambda: writer.pending(items))
        writer.close()
    brief = timed("brief for the workers", lambda: pickle.dumps(plain_items(items)))
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(
        json.dumps(
            {
                "prompts": prompts,
                "units": len(items),
                "cpu_s": took,
                "brief_mb": len(brief) / 1e6,
                "peak_mb": peak,
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=int, default=0, help="prompts to plan for, measured")
    options = parser.parse_args()
    if options.plan:
        plan(options.plan)
    else:
        table()
