"""Work units: fixed batches of samples, plain enough to be sent to another process or written as JSON."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from orderlens.errors import UserInputError
from orderlens.models.abilities import CountsParameters, PrefersUnitSize, SuggestsBatch
from orderlens.models.protocol import Model
from orderlens.texts.samples import EncodedSample

DEFAULT_BATCH = 32
"""Most samples per work unit of a model that does not know how many sequences fit."""
SMALL_REVEALS = 2048
"""Reveals per work unit of such a model."""
CPU_UNIT_S = 10.0
"""Seconds that a work unit on a CPU lasts at most, about: what an interrupt costs."""
CPU_FLOPS = 3e10
"""Floating-point operations per second of a modest CPU; one current core reaches 5e10 to 9e10."""
AUTO_SEQUENCES = {"block-causal": 1024, "full": 256}
"""Sequences (samples × orders) per work unit of one that does: enough to keep a large GPU busy with most
networks (others say so). How many of them are decoded together is settled on the machine at hand."""
ROUNDS = 4
"""Units per worker that even out long and short ones, as long as they keep a quarter of their size."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A fixed batch: what is decoded together.

    Attributes:
        samples: the encoded samples.
        temperature: at which they are decoded; None when scoring.
        orders: specs of the orders; None is all orders of the run, any other choice is part of the key.
        extras: per sample what its kind of run needs besides (the document to grade, say); may be empty.
            It follows from the run's spec and so is no part of the key.
    """

    samples: tuple[EncodedSample, ...]
    temperature: float | None = None
    orders: tuple[str, ...] | None = None
    extras: tuple[Mapping[str, Any], ...] = ()

    def key(self) -> str:
        """Return a digest of the unit's content (not of its place in the run)."""
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
            "temperature": self.temperature,
            "orders": None if self.orders is None else list(self.orders),
            "extras": [dict(extra) for extra in self.extras],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Unit:
        """Return the unit that ``to_json`` wrote."""
        return cls(
            tuple(_sample_of(item) for item in value["samples"]),
            value["temperature"],
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
    """Return the default number of samples per work unit, and of orders where they are cut apart as well.

    The run's spec keeps what was chosen, and whoever resumes or joins the run takes it from there. Where
    several workers are known to share the run, ``shared_size`` makes units smaller.

    Args:
        model: the model.
        n_orders: number of orders.
        n_tokens: passes of a sample under one order, at most.
        context: longest sequence, for models that see all of it in each pass.
        on_cpu: the units are surely computed on a CPU.
        compares_batches: the noise floor is measured, which compares samples in their batch and alone; such
            units hold several samples, however long they take.
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
    """Return the orders that are computed together: all of them (None), or at most ``most``."""
    if most is None or most >= len(orders):
        return [None]
    return [tuple(orders[low : low + most]) for low in range(0, len(orders), most)]


def even_size(size: int, count: int) -> int:
    """Return samples per unit, at most ``size``: where ``count`` of them need several units, equal ones.

    Where one is enough, ``size`` stays, so that a run which is extended later has room in its units.
    """
    units = math.ceil(count / size)
    return math.ceil(count / units) if units > 1 else size


def shared_size(size: int, count: int, groups: int, workers: int) -> int:
    """Return samples per unit, at most ``size``, so that every one of several workers has work to the end.

    The units fill whole rounds of all workers: as many as units of ``size`` would take, or ``ROUNDS`` where
    that keeps them at a quarter of it. Where even one round has too few units, they are cut smaller.

    Args:
        size: samples per unit of one worker alone.
        count: samples of each group.
        groups: sets of samples that are cut apart, one per temperature.
        workers: how many share the run.
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
    """Cut samples (and what belongs to each) into fixed batches."""
    if batch_size < 1:
        raise UserInputError(f"batch_size={batch_size} must be at least 1")
    places = [slice(low, low + batch_size) for low in range(0, len(samples), batch_size)]
    return [Unit(tuple(samples[at]), temperature, orders, tuple(extras[at])) for at in places]
