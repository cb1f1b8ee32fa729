"""``score`` and ``generate``: the calls behind the command line and the Python front door.

They check the request, cut it into work units (fixed batches of samples under all orders), decode each unit
and hand its tables to the store, or keep them in memory when no folder is given.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from orderlens.decode.batches import BatchLimit
from orderlens.decode.columns import TraceLabels, reveal_table
from orderlens.decode.generate import Chain, GenerationSettings, generate_batch
from orderlens.decode.score import check_fits, score_batch
from orderlens.errors import UserInputError
from orderlens.grid import Canvas
from orderlens.measure import circulation_table, noise_table
from orderlens.models.abilities import SuggestsBatch
from orderlens.models.loading import load_model
from orderlens.models.protocol import Anchor, Model
from orderlens.orders import OracleOrder, Order, parse_orders
from orderlens.samples import EncodedSample, Sample, encode_samples
from orderlens.store.reader import Run, memory_run, open_run
from orderlens.store.schema import table_schema
from orderlens.store.writer import execute, open_writer


class ProgressSink(Protocol):
    """Something that shows progress, such as ``orderlens.cli.console.Bar``."""

    def __call__(self, steps: int = 1) -> None:
        """Advance by so many tokens."""
        ...

    def set_total(self, total: int) -> None:
        """Say how many tokens there are (an upper bound when decoding may stop early)."""
        ...


Orders = str | Iterable[str | Order]
DEFAULT_BATCH = 32
"""Samples per work unit of a model that does not know how many sequences fit."""
AUTO_SEQUENCES = 256
"""Sequences (samples × orders) per work unit of one that does: enough to keep a large GPU busy. How many of
them are decoded together is another matter, settled on the machine at hand."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A fixed batch: the samples decoded together and the temperature they are decoded at."""

    samples: tuple[EncodedSample, ...]
    temperature: float | None = None

    def key(self) -> str:
        """Return a digest of the unit's content (not of its place in the run)."""
        state = hashlib.blake2b(digest_size=12)
        state.update(repr(self.temperature).encode())
        for sample in self.samples:
            state.update(sample.content_key().encode())
        return state.hexdigest()


def score(
    model: Model | str,
    samples: Iterable[Sample],
    orders: Orders,
    *,
    block_size: int | None = None,
    anchor: Anchor | None = None,
    batch_size: int | None = None,
    circulation: int = 0,
    noise_floor: bool = False,
    out: str | os.PathLike[str] | None = None,
    data_record: Mapping[str, Any] | None = None,
    progress: ProgressSink | None = None,
) -> Run:
    """Score fixed targets under several reveal orders.

    Args:
        model: a model or a spec such as ``"tiny"`` or ``"hmm"``.
        samples: ``Sample``s with targets.
        orders: order specs, e.g. ``["forced-ar", "random:3"]``.
        block_size: tokens per block; the model's own by default.
        anchor: ``"zero"`` or ``"prompt"``: where the block grid starts; the model's own choice by default.
        batch_size: samples per work unit; chosen for the model by default. As many of them are scored
            together as fit in memory.
        circulation: adjacent pairs per sample and order whose swap is measured (table ``circulation``).
        noise_floor: score every path again under perturbations that should change nothing (table ``noise``).
        out: run folder; without it the run lives in memory.
        data_record: where the samples came from, for the run's spec.
        progress: is told the number of tokens to score and each advance.

    Returns:
        The run; ``run.reveals()`` and ``run.samples()`` give its tables.
    """
    loaded = prepare_model(model, block_size)
    chosen = parse_orders(orders)
    if circulation < 0:
        raise UserInputError(f"circulation={circulation} must be at least 0")
    encoded = encode_samples(loaded, samples, need_target=True)
    where = check_anchor(anchor or loaded.anchor)
    limit = BatchLimit.suggested(loaded, _check_canvases(loaded, encoded, where, None))
    unit_size = unit_samples(loaded, chosen, batch_size)
    spec = base_spec("score", loaded, chosen, encoded, data_record) | {
        "anchor": where,
        "batch_size": unit_size,
    }

    def work(unit: Unit) -> dict[str, pa.Table]:
        columns = score_batch(loaded, unit.samples, chosen, where, progress, limit)
        labels = TraceLabels(unit.samples, chosen, None, None)
        reveals = reveal_table(columns, labels, loaded, float_type(loaded))
        tables = {"reveals": reveals, "outputs": _scored_outputs(loaded, unit.samples, chosen)}
        if circulation:
            tables["circulation"] = circulation_table(
                loaded, unit.samples, chosen, columns, circulation, anchor=where
            )
        if noise_floor:
            tables["noise"] = noise_table(loaded, unit.samples, chosen, columns, anchor=where)
        return tables

    def size(unit: Unit) -> int:
        return len(chosen) * sum(len(sample.target) for sample in unit.samples)

    return run_units(cut_units(encoded, unit_size), work, spec, out, progress, size)


def generate(
    model: Model | str,
    prompts: Iterable[Sample | str],
    orders: Orders,
    *,
    max_new_tokens: int = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int = 0,
    stop_at_eos: bool = True,
    block_size: int | None = None,
    anchor: Anchor | None = None,
    batch_size: int | None = None,
    out: str | os.PathLike[str] | None = None,
    data_record: Mapping[str, Any] | None = None,
    progress: ProgressSink | None = None,
) -> Run:
    """Decode prompts under several reveal orders, one token per step.

    Args:
        model: a model or a spec.
        prompts: ``Sample``s (targets are ignored) or strings.
        orders: deployable order specs; oracles cannot generate.
        max_new_tokens: positions to decode, at most 16,384; the last block is always completed.
        temperature: 0 is greedy; several temperatures give a sweep in one run.
        seed: seed of the token draws at temperature > 0.
        stop_at_eos: end after the block in which an EOS was committed.
        block_size: tokens per block; the model's own by default.
        anchor: where the block grid starts.
        batch_size: prompts per work unit; chosen for the model by default. As many of them are decoded
            together as fit in memory.
        out: run folder; without it the run lives in memory.
        data_record: where the prompts came from, for the run's spec.
        progress: is told the number of tokens to decode and each advance.
    """
    loaded = prepare_model(model, block_size)
    chosen = parse_orders(orders)
    refuse_oracles(chosen)
    encoded = encode_samples(loaded, prompts, need_target=False)
    where = check_anchor(anchor or loaded.anchor)
    temperatures = _temperatures(temperature)
    settings = {
        value: GenerationSettings(max_new_tokens, value, seed, stop_at_eos, where) for value in temperatures
    }
    limit = BatchLimit.suggested(loaded, _check_canvases(loaded, encoded, where, max_new_tokens))
    unit_size = unit_samples(loaded, chosen, batch_size)
    spec = base_spec("generate", loaded, chosen, encoded, data_record) | {
        "anchor": where,
        "batch_size": unit_size,
        "max_new_tokens": max_new_tokens,
        "temperatures": temperatures,
        "seed": seed,
        "stop_at_eos": stop_at_eos,
    }

    def work(unit: Unit) -> dict[str, pa.Table]:
        assert unit.temperature is not None
        return decode_unit(loaded, unit.samples, chosen, settings[unit.temperature], progress, limit)

    units = [unit for value in temperatures for unit in cut_units(encoded, unit_size, value)]
    return run_units(
        units, work, spec, out, progress, reveals_ahead(loaded, chosen, settings[temperatures[0]])
    )


def reveals_ahead(
    model: Model, orders: Sequence[Order], settings: GenerationSettings
) -> Callable[[Unit], int]:
    """Return how many reveals a unit takes at most: canvases are rounded up to whole blocks."""
    anchor = settings.anchor or model.anchor

    def count(unit: Unit) -> int:
        plans = (
            Canvas.plan(len(sample.prompt), settings.max_new_tokens, model.block_size, anchor)
            for sample in unit.samples
        )
        return len(orders) * sum(plan.end - plan.prompt_length for plan in plans)

    return count


def decode_unit(
    model: Model,
    samples: Sequence[EncodedSample],
    orders: Sequence[Order],
    settings: GenerationSettings,
    on_reveals: Callable[[int], None] | None = None,
    limit: BatchLimit | None = None,
) -> dict[str, pa.Table]:
    """Generate for one batch and return its ``reveals`` and ``outputs`` tables."""
    generation = generate_batch(model, samples, orders, settings, on_reveals, limit)
    sample_seed = settings.sample_seed if settings.temperature > 0 else None
    labels = TraceLabels(samples, orders, settings.temperature, sample_seed)
    reveals = reveal_table(generation.columns, labels, model, float_type(model))
    return {"reveals": reveals, "outputs": _generated_outputs(model, labels, generation.chains)}


def run_units(
    units: Sequence[Unit],
    work: Callable[[Unit], dict[str, pa.Table]],
    spec: Mapping[str, Any],
    out: str | os.PathLike[str] | None,
    progress: ProgressSink | None = None,
    size: Callable[[Unit], int] = lambda unit: len(unit.samples),
) -> Run:
    """Compute all units into the folder ``out`` (resuming what is there), or in memory.

    ``size`` is the number of progress steps of a unit; only units still to be computed count.
    """
    if out is None:
        if progress is not None:
            progress.set_total(sum(map(size, units)))
        parts = [work(unit) for unit in units]
        return memory_run({name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}, spec)
    by_key = {unit.key(): unit for unit in units}
    with open_writer(out, spec) as writer:
        if progress is not None:
            progress.set_total(sum(size(by_key[key]) for key in writer.pending(by_key)))
        execute(writer, by_key, work)
    return open_run(out)


def prepare_model(model: Model | str, block_size: int | None) -> Model:
    """Load ``model`` if it is a spec, and give it the wanted block size."""
    loaded = load_model(model)
    if block_size is None or block_size == loaded.block_size:
        return loaded
    if block_size < 1:
        raise UserInputError(f"block_size={block_size} must be at least 1")
    return loaded.with_block_size(block_size)


def base_spec(
    kind: str,
    model: Model,
    orders: Sequence[Order],
    samples: Sequence[EncodedSample],
    data_record: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what every run's spec holds: model, orders, and a digest of the encoded samples."""
    digest = hashlib.blake2b(digest_size=16)
    for sample in samples:
        digest.update(sample.content_key().encode())
    return {
        "kind": kind,
        "model": {
            "name": model.name,
            "digest": model.digest,
            "vocab_size": model.vocab_size,
            "mask_id": model.mask_id,
            "eos_ids": sorted(model.eos_ids),
            "special_ids": sorted(model.special_ids),
            "attention": model.attention,
            "precision": model.precision,
        },
        "block_size": model.block_size,
        "orders": [order.spec for order in orders],
        "data": {**(data_record or {}), "n_samples": len(samples), "digest": digest.hexdigest()},
    }


def refuse_oracles(orders: Sequence[Order]) -> None:
    """Raise when an order needs a target: generation has none."""
    for order in orders:
        if isinstance(order, OracleOrder):
            raise UserInputError(
                f"order '{order.spec}' needs a known target and cannot generate; use it with score"
            )


def check_anchor(anchor: str) -> Anchor:
    """Return ``anchor`` if it is one of the two choices."""
    if anchor not in ("zero", "prompt"):
        raise UserInputError(f"anchor '{anchor}' is unknown; allowed are zero and prompt")
    return "zero" if anchor == "zero" else "prompt"


def unit_samples(model: Model, orders: Sequence[Order], batch_size: int | None) -> int:
    """Return the number of samples per work unit: the one asked for, or the model's default.

    The default depends on the request alone and never on the machine, so that an unfinished run can be
    resumed, and shared by several workers, anywhere.
    """
    if batch_size is not None:
        return batch_size
    if not isinstance(model, SuggestsBatch):
        return DEFAULT_BATCH
    return max(1, AUTO_SEQUENCES // len(orders))


def cut_units(
    samples: Sequence[EncodedSample], batch_size: int, temperature: float | None = None
) -> list[Unit]:
    """Cut samples into fixed batches."""
    if batch_size < 1:
        raise UserInputError(f"batch_size={batch_size} must be at least 1")
    return [
        Unit(tuple(samples[low : low + batch_size]), temperature)
        for low in range(0, len(samples), batch_size)
    ]


def float_type(model: Model) -> pa.DataType:
    """Return the Arrow type of the model's log-probabilities."""
    return pa.float64() if model.precision == "float64" else pa.float32()


def _temperatures(temperature: float | Sequence[float]) -> list[float]:
    values = (
        [float(temperature)]
        if isinstance(temperature, int | float)
        else [float(item) for item in temperature]
    )
    if not values or len(set(values)) < len(values):
        raise UserInputError(f"temperatures {values} must be non-empty and distinct")
    return values


def _check_canvases(model: Model, samples: Sequence[EncodedSample], anchor: Anchor, n_new: int | None) -> int:
    """Refuse over-long samples before any unit is computed; return the longest canvas."""
    canvases = [
        Canvas.plan(len(item.prompt), len(item.target) if n_new is None else n_new, model.block_size, anchor)
        for item in samples
    ]
    check_fits(model, samples, canvases)
    return max(canvas.end for canvas in canvases)


def _scored_outputs(model: Model, samples: Sequence[EncodedSample], orders: Sequence[Order]) -> pa.Table:
    rows = [
        _output_row(model, sample, order, None, None)
        | {"token_ids": sample.target.tolist(), "text": model.tokenizer.decode(sample.target.tolist())}
        | {"n_requested": len(sample.target), "finish_reason": None}
        for sample in samples
        for order in orders
    ]
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def _generated_outputs(model: Model, labels: TraceLabels, chains: Sequence[Chain]) -> pa.Table:
    rows = []
    for chain in chains:
        sample, order, canvas = labels.samples[chain.sample], labels.orders[chain.order], chain.canvas
        decoded = chain.tokens[
            canvas.prompt_length : min(canvas.requested_end, canvas.prompt_length + chain.steps)
        ]
        tokens = decoded.tolist()
        text_end = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
        row = _output_row(model, sample, order, labels.temperature, labels.sample_seed)
        row |= {"token_ids": tokens, "text": model.tokenizer.decode(tokens[:text_end])}
        rows.append(row | {"n_requested": canvas.n_requested, "finish_reason": chain.finish_reason})
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def _output_row(
    model: Model, sample: EncodedSample, order: Order, temperature: float | None, sample_seed: int | None
) -> dict[str, Any]:
    return {
        "sample_id": sample.id,
        "task": sample.task,
        "order": order.label,
        "seed": order.seed,
        "temperature": temperature,
        "sample_seed": sample_seed,
        "prompt_ids": sample.prompt.tolist(),
        "prompt_text": model.tokenizer.decode(sample.prompt.tolist()),
    }
