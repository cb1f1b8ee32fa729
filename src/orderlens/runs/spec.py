"""``RunSpec``: everything that determines the rows of a run, as plain data.

The store keeps its JSON and compares it on resume. Fields that do not apply are therefore left out, and the
order of the fields is fixed. Does not depend on files or decoding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from orderlens.common.arguments import as_temperatures, plain_temperature
from orderlens.common.grid import Overflow
from orderlens.errors import RunError
from orderlens.models.abilities import weight_format
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
        limit_states: maximum number of states per prompt of a census of generated texts. In other runs,
            maximum number of masked positions per trace in the table ``states``; None without this table.
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
    limit_states: int | None = None

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
