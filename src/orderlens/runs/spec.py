"""A run as plain data: ``RunSpec``, which determines its rows, and ``Unit``, a fixed batch of its samples.

The store keeps the spec's JSON and compares it on resume. Fields that do not apply are therefore left out,
and the order of the fields is fixed. Units travel to other processes. Does not depend on files or decoding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from orderlens.common.grid import Overflow
from orderlens.common.temperature import as_temperatures, plain_temperature
from orderlens.errors import RunError, UserInputError
from orderlens.models.abilities import CountsParameters, PrefersUnitSize, SuggestsBatch, weight_format
from orderlens.models.protocol import Anchor, Model
from orderlens.texts.samples import EncodedSample

_ALWAYS = ("kind", "model", "block_size", "orders", "data")
_TUPLES = ("orders", "temperatures", "positions")


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The specification of a run.

    Attributes:
        kind: ``score``, ``generate``, ``evaluate``, ``census``, ``census-texts`` or ``measure``.
        model: name, digest and facts of the model (``describe_model``).
        block_size: tokens per block.
        orders: specs of the orders.
        data: origin of the samples, their number and a digest of their tokens.
        anchor: where the block grid starts; None leaves the choice to the model.
        circulation: number of adjacent swaps measured per sample and order; None for no measurement.
        couplings: number of jointly committed sets per trace that are re-scored one token per step; None for
            no measurement.
        batch_size: samples per work unit.
        unit_orders: orders per work unit; None puts all orders of a sample into one unit.
        noise_floor: whether paths are re-scored to measure numerical noise.
        max_new_tokens: number of positions to decode.
        temperatures: sampling temperatures; a schedule is stored as its text.
        seed: seed of the token draws.
        stop_at_eos: whether a text ends after the block with an EOS.
        overflow: ``mask`` if positions past the requested length stay masked; None if they are filled.
        chat: whether prompts use the model's chat template.
        likelihood: per label of a policy, whether the sum of log q is the sampler's likelihood (``exact``),
            one term of an average over seeds (``estimate``), or ``none``. ``LABEL|drawn`` is for temperatures
            above 0, where it differs.
        span: positions of each span of a census.
        spans: number of spans that are spread over each target; None for the one at ``start``.
        start: offset in the target at which the span starts.
        positions: offsets of the span's positions in the target, where these are chosen instead.
        max_states: maximum number of states per prompt of a census of generated texts.
        limit_states: maximum number of masked positions per trace in the table ``states``; None without it.
        files: digest of what the rules read from each file; None if they read none.
    """

    kind: str
    model: Mapping[str, Any]
    block_size: int
    orders: tuple[str, ...]
    data: Mapping[str, Any]
    anchor: Anchor | None = None
    circulation: int | None = None
    couplings: int | None = None
    batch_size: int = 0
    unit_orders: int | None = None
    noise_floor: bool | None = None
    max_new_tokens: int | None = None
    temperatures: tuple[float, ...] | None = None
    seed: int | None = None
    stop_at_eos: bool | None = None
    overflow: Overflow | None = None
    chat: bool | None = None
    likelihood: Mapping[str, str] | None = None
    span: int | None = None
    spans: int | None = None
    start: int | None = None
    positions: tuple[int, ...] | None = None
    max_states: int | None = None
    limit_states: int | None = None
    files: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the spec as the store writes it."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["temperatures"] = self.temperatures and tuple(map(plain_temperature, self.temperatures))
        return {
            name: list(value) if name in _TUPLES else value
            for name, value in found.items()
            if name in _ALWAYS or value is not None
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunSpec:
        """Return the spec of a run folder; unknown fields are ignored."""
        if absent := [name for name in _ALWAYS if name not in value]:
            raise RunError(
                f"a run of kind '{value.get('kind')}' has no '{absent[0]}': it was not decoded by OrderLens"
            )
        known = {item.name for item in fields(cls)} & set(value)
        given: dict[str, Any] = {
            name: tuple(value[name]) if name in _TUPLES else value[name] for name in known
        }
        if given.get("temperatures") is not None:
            given["temperatures"] = tuple(as_temperatures(given["temperatures"]))
        return cls(**given)


def describe_model(model: Model) -> dict[str, Any]:
    """Return the entry of a spec about the model; ``weights`` if their format is not its dtype."""
    weights = weight_format(model)
    return {
        "name": model.name,
        "digest": model.digest,
        "vocab_size": model.vocab_size,
        "mask_id": model.mask_id,
        "eos_ids": sorted(model.eos_ids),
        "special_ids": sorted(model.special_ids),
        "attention": model.attention,
        "precision": model.precision,
        **({} if weights is None else {"weights": weights}),
    }


def describe_data(samples: Sequence[EncodedSample], record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entry of a spec about the samples: source, number and a digest of their tokens."""
    return {**(record or {}), "n_samples": len(samples), "digest": samples_digest(samples)}


def samples_digest(samples: Sequence[EncodedSample]) -> str:
    """Return a digest of encoded samples in their order."""
    state = hashlib.blake2b(digest_size=16)
    for sample in samples:
        state.update(sample.content_key().encode())
    return state.hexdigest()


def refuse_other_model(spec: RunSpec, model: Model) -> None:
    """Refuse a model that is not the one of ``spec``."""
    wanted, found = spec.model, describe_model(model)
    for name in ("digest", "precision"):
        if wanted.get(name) != found[name]:
            raise RunError(
                f"model '{model.name}' is not the one of the run ('{wanted.get('name')}'): its {name} is "
                f"{found[name]}, the run's {wanted.get(name)}; use the same weights, device and dtype"
            )
    if model.block_size != spec.block_size:
        raise RunError(f"the model has block size {model.block_size}, but the run has {spec.block_size}")


def refuse_changed_files(known: Mapping[str, str] | None, files: Mapping[str, str] | None) -> None:
    """Refuse rules that read something else from a file than the rules of a run did.

    Args:
        known: ``RunSpec.files`` of the run.
        files: digest of what the rules read now.
    """
    for path, digest in (files or {}).items():
        if (known or {}).get(path, digest) != digest:
            raise RunError(
                f"the numbers in file {path} have changed since the run started; restore them, or use "
                "another folder"
            )


DEFAULT_BATCH = 32
"""Maximum number of samples per work unit of a model that does not suggest a batch size."""
SMALL_REVEALS = 2048
"""Reveals per work unit of such a model."""
CPU_UNIT_S = 10.0
"""Approximate maximum seconds of a work unit on a CPU, and so the work that an interrupt loses."""
CPU_FLOPS = 3e10
"""Floating-point operations per second of a slow CPU; one current core reaches 5e10 to 9e10."""
AUTO_SEQUENCES = {"block-causal": 1024, "full": 256}
"""Sequences (samples × orders) per work unit of a model that suggests a batch size: enough for a large GPU.
The batch size follows from the memory of the machine that computes the unit."""
ROUNDS = 4
"""Preferred units per worker, to balance long and short units, if they keep a quarter of their size."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A fixed batch of samples.

    Attributes:
        samples: the encoded samples.
        temperature: sampling temperature; None when scoring.
        orders: specs of the orders, part of the key; None for all orders of the run.
        extras: additional data per sample, e.g. the document to grade; may be empty. It follows from the
            run's spec, so it is not part of the key.
    """

    samples: tuple[EncodedSample, ...]
    temperature: float | None = None
    orders: tuple[str, ...] | None = None
    extras: tuple[Mapping[str, Any], ...] = ()

    def key(self) -> str:
        """Return a digest of the unit's content; its place in the run does not matter."""
        state = hashlib.blake2b(digest_size=12)
        state.update(repr(self.temperature).encode())
        for sample in self.samples:
            state.update(sample.content_key().encode())
        if self.orders is not None:
            state.update("\x00".join(("", *self.orders)).encode())
        return state.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the unit as plain JSON values."""
        return {
            "samples": [_plain_sample(sample) for sample in self.samples],
            "temperature": None if self.temperature is None else plain_temperature(self.temperature),
            "orders": None if self.orders is None else list(self.orders),
            "extras": [dict(extra) for extra in self.extras],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Unit:
        """Return the unit that ``to_json`` wrote."""
        return cls(
            tuple(_sample_of(item) for item in value["samples"]),
            None if value["temperature"] is None else as_temperatures(value["temperature"])[0],
            None if value["orders"] is None else tuple(value["orders"]),
            tuple(value["extras"]),
        )


def _plain_sample(sample: EncodedSample) -> dict[str, Any]:
    found = {item.name: getattr(sample, item.name) for item in fields(sample)}
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in found.items()}


def _sample_of(value: Mapping[str, Any]) -> EncodedSample:
    given: dict[str, Any] = {
        name: np.asarray(item, np.int64) if isinstance(item, list) else item for name, item in value.items()
    }
    return EncodedSample(**given)


def unit_shape(
    model: Model, n_orders: int, n_tokens: int, context: int, *, on_cpu: bool, compares_batches: bool = False
) -> tuple[int, int | None]:
    """Return the default number of samples per work unit, and of orders if orders are divided as well.

    The run's spec stores both numbers, and every process that resumes or joins the run uses them. For several
    workers ``shared_size`` reduces the number of samples.

    Args:
        model: the model.
        n_orders: number of orders.
        n_tokens: maximum number of passes of a sample under one order.
        context: longest sequence, for models with full attention.
        on_cpu: the units are certainly computed on a CPU.
        compares_batches: the noise floor is measured, which compares samples in a batch and alone; such units
            contain several samples, even if they take long.
    """
    if on_cpu and isinstance(model, CountsParameters) and not compares_batches:
        width = context if model.attention == "full" else model.block_size
        seconds = 2 * model.n_parameters * max(1, width) * max(1, n_tokens) / CPU_FLOPS
        traces = max(1, int(CPU_UNIT_S / seconds))
        if traces < n_orders:
            return 1, math.ceil(n_orders / math.ceil(n_orders / traces))
        return min(DEFAULT_BATCH, traces // n_orders), None
    if on_cpu or not isinstance(model, SuggestsBatch):
        return min(DEFAULT_BATCH, max(1, SMALL_REVEALS // (n_orders * max(1, n_tokens)))), None
    wanted = model.unit_sequences if isinstance(model, PrefersUnitSize) else AUTO_SEQUENCES[model.attention]
    return max(1, wanted // n_orders), None


def order_groups(orders: Sequence[str], most: int | None) -> list[tuple[str, ...] | None]:
    """Return groups of at most ``most`` orders per unit; None stands for all orders."""
    if most is None or most >= len(orders):
        return [None]
    return [tuple(orders[low : low + most]) for low in range(0, len(orders), most)]


def even_size(size: int, count: int) -> int:
    """Return the samples per unit, at most ``size``, such that several units have equal sizes.

    If one unit is enough, ``size`` stays: units of a later extension are then not too small.
    """
    units = math.ceil(count / size)
    return math.ceil(count / units) if units > 1 else size


def shared_size(size: int, count: int, groups: int, workers: int) -> int:
    """Return the samples per unit, at most ``size``, such that all workers finish at about the same time.

    The number of units is a multiple of the number of workers. There are up to ``ROUNDS`` units per worker,
    if their size stays at least a quarter of ``size``.

    Args:
        size: samples per unit for a single worker.
        count: samples of each group.
        groups: number of separately divided sets of samples, e.g. one per temperature.
        workers: number of workers.
    """
    if workers < 2 or count < 1:
        return size

    def cut(rounds: int) -> int:
        return math.ceil(count / max(1, rounds * workers // groups))

    needed = math.ceil(groups * math.ceil(count / size) / workers)
    evened = [cut(rounds) for rounds in range(needed, ROUNDS + 1) if 4 * cut(rounds) >= size]
    return min(size, evened[-1] if evened else cut(needed))


def cut_units(
    samples: Sequence[EncodedSample],
    batch_size: int,
    temperature: float | None = None,
    orders: tuple[str, ...] | None = None,
    extras: Sequence[Mapping[str, Any]] = (),
) -> list[Unit]:
    """Divide samples and their extras into fixed batches."""
    if batch_size < 1:
        raise UserInputError(f"batch_size={batch_size} must be at least 1")
    places = [slice(low, low + batch_size) for low in range(0, len(samples), batch_size)]
    return [Unit(tuple(samples[at]), temperature, orders, tuple(extras[at])) for at in places]
