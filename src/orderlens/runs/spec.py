"""``RunSpec``: everything that determines the rows of a run, as plain data.

Its JSON is what the store keeps and compares on resume, so a field that does not apply is left out and the
order of the fields is fixed. Knows no files and decodes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from orderlens.errors import RunError
from orderlens.models.protocol import Anchor, Model
from orderlens.texts.samples import EncodedSample

_ALWAYS = ("kind", "model", "block_size", "orders", "data")
_TUPLES = ("orders", "temperatures")


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a run computes.

    Attributes:
        kind: ``score``, ``generate``, ``evaluate`` or ``measure``.
        model: name, digest and facts of the model (``describe_model``).
        block_size: tokens per block.
        orders: specs of the orders.
        data: where the samples came from, their number and a digest of their tokens.
        anchor: where the block grid starts; None is the model's own choice.
        circulation: adjacent swaps measured per sample and order; None measures none.
        couplings: sets committed in one pass that are revealed one by one, per trace; None measures none.
        batch_size: samples per work unit.
        unit_orders: orders per work unit; None computes all orders of a sample in one.
        noise_floor: whether paths are scored again under harmless perturbations.
        max_new_tokens: positions to decode.
        temperatures: of the sweep; one when there is none.
        seed: of the token draws.
        stop_at_eos: whether a text ends after the block with an EOS.
        chat: whether prompts are in the model's chat template.
        likelihood: by label of a policy, whether a trace's sum of log q is the likelihood of the sampler that
            the policy defines (``exact``), one path of an average over seeds (``estimate``) or ``none``; the
            entry ``LABEL|drawn`` holds for traces at temperature > 0 where that differs.
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
    chat: bool | None = None
    likelihood: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the spec as the store keeps it."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: list(value) if name in _TUPLES else value
            for name, value in found.items()
            if name in _ALWAYS or value is not None
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunSpec:
        """Return the spec that a run folder holds; fields of other kinds of run are ignored."""
        if absent := [name for name in _ALWAYS if name not in value]:
            raise RunError(f"a run of kind '{value.get('kind')}' has no '{absent[0]}': it was not decoded")
        known = {item.name for item in fields(cls)} & set(value)
        given: dict[str, Any] = {
            name: tuple(value[name]) if name in _TUPLES else value[name] for name in known
        }
        return cls(**given)


def describe_model(model: Model) -> dict[str, Any]:
    """Return what a spec says about the model."""
    return {
        "name": model.name,
        "digest": model.digest,
        "vocab_size": model.vocab_size,
        "mask_id": model.mask_id,
        "eos_ids": sorted(model.eos_ids),
        "special_ids": sorted(model.special_ids),
        "attention": model.attention,
        "precision": model.precision,
    }


def describe_data(samples: Sequence[EncodedSample], record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a spec says about the samples: their source, number and a digest of their tokens."""
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
                f"{found[name]}, the run's {wanted.get(name)}; give the same weights, device and dtype"
            )
    if model.block_size != spec.block_size:
        raise RunError(f"the model has block size {model.block_size}, the run {spec.block_size}")
