"""The stages with forward passes, each into a run folder of its own, and the probe that times a state.

A stage computes only what its folder does not hold yet. Nothing here makes tables or figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens import api
from orderlens.datafiles import LoadedData
from orderlens.decode.score import score_batch
from orderlens.errors import RunError
from orderlens.measure import circulation_table, noise_table
from orderlens.models.protocol import Model
from orderlens.orders import parse_orders
from orderlens.replicate.external import count_texts, external_folder, find_evaluator, score_texts
from orderlens.replicate.plan import Plan
from orderlens.samples import EncodedSample, Sample, encode_samples
from orderlens.store.reader import open_run
from orderlens.store.records import SPEC
from orderlens.store.writer import execute, open_writer

Show = Callable[[str], AbstractContextManager[api.ProgressSink | None]]
"""Opens a progress bar with a label; replicate() advances it by tokens."""

PROBES = 8
"""Texts that the timing probe scores together."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all stages share."""

    plan: Plan
    model: Model
    data: LoadedData
    runs: Path
    show: Show

    @property
    def samples(self) -> list[Sample]:
        """The chosen texts."""
        return self.data.samples

    def data_record(self) -> dict[str, Any]:
        """Where the texts came from, by file name: the folder is another on another machine."""
        return {**self.data.record(), "source": Path(self.data.source).name}

    def data_digest(self) -> str:
        """Return the digest of the encoded texts that every run's spec holds."""
        encoded = encode_samples(self.model, self.samples, need_target=True)
        return str(api.base_spec("", self.model, [], encoded, None)["data"]["digest"])

    def options(self) -> dict[str, Any]:
        """Arguments that ``score`` and ``generate`` share."""
        return {
            "block_size": self.plan.block_size,
            "batch_size": self.plan.batch_size,
            "data_record": self.data_record(),
        }


def seconds_per_state(model: Model, plan: Plan) -> float:
    """Time half a block of scoring under an order that looks at every step; the best of three rounds.

    The first round of a fresh process is slow whatever the model, so it must not decide.
    """
    free = {model.mask_id, *model.eos_ids}
    ids = [token for token in range(model.vocab_size) if token not in free]
    length = max(model.block_size // 2, 1)
    tokens = np.resize(np.array(ids, np.int64), plan.prefix_tokens + length)
    prompt, target = tokens[: plan.prefix_tokens], tokens[plan.prefix_tokens :]
    probes = [EncodedSample(f"probe {place}", prompt, target) for place in range(PROBES)]
    times = []
    for _ in range(3):
        start = time.perf_counter()
        score_batch(model, probes, parse_orders("max-prob"))
        times.append(time.perf_counter() - start)
    return min(times) / (PROBES * length)


def _score(bench: Bench) -> None:
    with bench.show("scoring fixed targets") as bar:
        api.score(
            bench.model,
            bench.samples,
            bench.plan.score_orders,
            out=bench.runs / "score",
            progress=bar,
            **bench.options(),
        )


def _generate(bench: Bench) -> None:
    _decode(bench, "generate", "generating at T = 0", bench.plan.generate_orders, (0.0,))
    _tokens(bench)


def _sweep(bench: Bench) -> None:
    if bench.plan.temperatures:
        _decode(
            bench,
            "sweep",
            "sweeping temperatures",
            bench.plan.sweep_orders,
            bench.plan.temperatures,
        )


def _decode(
    bench: Bench, name: str, label: str, orders: Sequence[str], temperatures: Sequence[float]
) -> None:
    with bench.show(label) as bar:
        api.generate(
            bench.model,
            bench.samples,
            orders,
            max_new_tokens=bench.plan.target_tokens,
            temperature=temperatures,
            seed=bench.plan.seed,
            stop_at_eos=False,
            out=bench.runs / name,
            progress=bar,
            **bench.options(),
        )


def _measure(bench: Bench) -> None:
    """Noise floor and circulation on a few texts; their traces are not stored twice."""
    plan = bench.plan
    orders = parse_orders(plan.measured_orders)
    samples = encode_samples(bench.model, bench.samples[: plan.measured_sequences], need_target=True)
    spec = api.base_spec("measure", bench.model, orders, samples, bench.data_record()) | {
        "circulation_pairs": plan.circulation_pairs,
        "batch_size": plan.batch_size,
    }

    def work(unit: api.Unit) -> dict[str, pa.Table]:
        columns = score_batch(bench.model, unit.samples, orders)
        tables = {
            "circulation": circulation_table(
                bench.model, unit.samples, orders, columns, plan.circulation_pairs
            ),
            "noise": noise_table(bench.model, unit.samples, orders, columns),
        }
        if bar is not None:
            bar(sum(len(sample.target) for sample in unit.samples))
        return tables

    with bench.show("measuring the noise floor") as bar:
        size = min(plan.batch_size, 8)
        api.run_units(
            api.cut_units(samples, size),
            work,
            spec,
            bench.runs / "measure",
            bar,
            lambda unit: sum(len(sample.target) for sample in unit.samples),
        )


def _tokens(bench: Bench) -> None:
    """Store the text of every generated token id, so that pictures of tokens need no tokenizer."""
    rows = open_run(bench.runs / "generate").outputs().to_arrow(["token_ids"])["token_ids"]
    ids = sorted({token for row in rows.to_pylist() for token in row or ()})
    decode = bench.model.tokenizer.decode

    def work(unit: list[int]) -> dict[str, pa.Table]:
        pieces = pa.array([decode([token]) for token in unit])
        return {"tokens": pa.table({"token_id": pa.array(unit, pa.int32()), "piece": pieces})}

    spec = {"kind": "tokens", "model": {"name": bench.model.name, "digest": bench.model.digest}}
    with open_writer(bench.runs / "tokens", spec) as writer:
        execute(writer, {"tokens": ids}, work)


MODEL_STAGES: dict[str, Callable[[Bench], None]] = {
    "score": _score,
    "measure": _measure,
    "generate": _generate,
    "sweep": _sweep,
}
"""Stages with forwards of the model under study; they may run in any order and side by side."""


def folders_of(stage: str, plan: Plan, runs: Path) -> list[Path]:
    """Return the run folders that a stage fills."""
    if stage == "external":
        return [external_folder(runs, plan.evaluator)]
    if stage == "sweep" and not plan.temperatures:
        return []
    return [runs / name for name in (("generate", "tokens") if stage == "generate" else (stage,))]


def is_done(stage: str, plan: Plan, runs: Path) -> bool:
    """Whether everything that a stage computes is committed."""
    return all(_is_complete(folder) for folder in folders_of(stage, plan, runs))


def _is_complete(folder: Path) -> bool:
    return (folder / SPEC).is_file() and open_run(folder).is_complete


def score_from_outside(plan: Plan, runs: Path, device: str | None, show: Show) -> str | None:
    """Score the generated texts with the plan's evaluator; where there is none return the reason.

    Raises:
        RunError: the texts are not all there yet.
    """
    missing = [stage for stage in ("generate", "sweep") if not is_done(stage, plan, runs)]
    if missing:
        raise RunError(f"stage external needs all generated texts: run --stages {','.join(missing)} first")
    evaluator, why = find_evaluator(plan.evaluator, device)
    if evaluator is None:
        return why
    run = open_run([runs / name for name in ("generate", "sweep") if (runs / name).is_dir()])
    with show("scoring the texts from outside") as bar:
        if bar is not None:
            bar.set_total(count_texts(run))
        score_texts(run, evaluator, external_folder(runs, plan.evaluator), bar)
    return None
