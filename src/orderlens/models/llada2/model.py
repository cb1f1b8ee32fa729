"""LLaDA-2.x as a Model: everything the decoder needs, over our own network.

``load_llada2`` reads a checkpoint folder; ``LLaDA2Model`` can also be built from any weights, which is what
benchmarks with random weights do. Knows nothing of orders, targets or the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Literal, Self

import torch

from orderlens.errors import ModelLoadError
from orderlens.models.checkpoint_info import Look
from orderlens.models.engine.compiling import compiling_meanwhile
from orderlens.models.engine.device import pick_device, pick_dtype, with_index
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.model import Facts, Loaded, NetworkModel, Plain
from orderlens.models.engine.weights import tensors_digest
from orderlens.models.files.chat import find_template
from orderlens.models.files.checkpoint import Checkpoint, weights_digest
from orderlens.models.files.configfile import read_json
from orderlens.models.files.roles import IdsOnly, TokenRoles
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.llada2 import reference
from orderlens.models.llada2.checkpoint import (
    EMBEDDING,
    ExpertPlace,
    check_tensors,
    load_weights,
    not_enough_memory,
)
from orderlens.models.llada2.config import (
    FLASH,
    MINI,
    PUBLISHED_BLOCK_SIZE,
    LLaDA2Config,
    parse_config,
)
from orderlens.models.llada2.network import Network, kernels_apply
from orderlens.models.llada2.roles import find_roles
from orderlens.models.llada2.weights import Weights, cast_weights, published_tensors
from orderlens.models.options import LoadOptions

LOOK = Look(parse_config, check_tensors, {r"llada2.*mini": MINI, r"llada2.*flash": FLASH}, mapped=True)
"""How ``doctor`` describes a checkpoint that is not loaded."""


MAX_TOKENS = 81920
"""Tokens of one forward: an expert's share (2,560 on average) fills its tiles, and all of it is recorded."""


class LLaDA2Model(NetworkModel):
    """A loaded LLaDA-2.x model."""

    unit_sequences = 2 * MAX_TOKENS // PUBLISHED_BLOCK_SIZE
    """Two halves that advance in turn, each of the widest forward."""

    def __init__(
        self,
        weights: Weights,
        config: LLaDA2Config,
        roles: TokenRoles,
        *,
        name: str,
        tokenizer: FastTokenizer | None = None,
        digest: Callable[[], str] | None = None,
        block_size: int = PUBLISHED_BLOCK_SIZE,
    ) -> None:
        self.weights, self.config = weights, config
        facts = Facts(
            name=name,
            size=config,
            vocab_size=config.vocab_size,
            roles=roles,
            tokenizer=tokenizer or IdsOnly(),
            digest=digest or partial(tensors_digest, weights, config),
            attention="block-causal",
            anchor="zero",
            chat=find_template(tokenizer) if tokenizer else None,
            kind="a LLaDA-2 model",
        )
        super().__init__(facts, _assembled(weights, config), block_size)

    def with_dtype(self, name: str) -> Self:
        """Return a copy whose weights and activations have another dtype; the router's bias stays float32."""
        weights = cast_weights(self.weights, pick_dtype(name, self.dtype))
        return self._changed(weights=weights, loaded=_assembled(weights, self.config))


def _assembled(weights: Weights, config: LLaDA2Config) -> Loaded:
    """Put engine and plain forward around the network."""
    engine = ForwardEngine(Network(weights, config), config, MAX_TOKENS, MAX_TOKENS)
    return Loaded(engine, _plain(weights, config), weights.unembed_VC)


def _plain(weights: Weights, config: LLaDA2Config) -> Plain:
    """Return the readable forward; the tensors get their published names when it first runs."""
    named = cache(partial(published_tensors, weights, config))
    return lambda ids_1L, seen_LL: reference.hidden_states(named(), config, ids_1L[0], seen_LL)[None]


def load_folder(folder: Path, name: str, options: LoadOptions) -> LLaDA2Model:
    """Load a checkpoint for ``load_model``."""
    return load_llada2(folder, name=name, device=options.device or "auto", dtype=options.dtype or "auto")


def load_llada2(
    folder: Path | str,
    *,
    name: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    block_size: int = PUBLISHED_BLOCK_SIZE,
    experts: Literal["auto", "device", "host"] = "auto",
    mask_id: int | None = None,
    eos_ids: Sequence[int] | None = None,
) -> LLaDA2Model:
    """Load a checkpoint folder in the published layout.

    Args:
        folder: holds config.json, safetensors and (for text) tokenizer.json.
        name: the spec that loads this model again; the folder by default.
        device: ``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:N``.
        dtype: ``auto`` (as stored), ``bfloat16``, ``float16`` or ``float32``.
        block_size: tokens per block.
        experts: where expert matrices lie: stacked on the device, or memory-mapped on the host.
        mask_id: overrides config.json and tokenizer.
        eos_ids: overrides config.json and tokenizer.
    """
    folder = Path(folder)
    values = read_json(folder / "config.json")
    config = parse_config(values)
    tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
    roles = find_roles(values, config, tokenizer, mask_id, eos_ids)
    checkpoint = Checkpoint(folder)
    check_tensors(checkpoint, config)
    place = with_index(pick_device(device, prefer=("cuda", "mps")))
    kind = pick_dtype(dtype, checkpoint.dtype_of(EMBEDDING))
    experts_at = _expert_place(experts, config, place, kind)

    def rehearsed() -> None:
        if experts_at == "device" and kernels_apply(config, place, kind):
            from orderlens.models.llada2.rehearsal import rehearse

            rehearse(config, kind, roles, block_size, MAX_TOKENS)

    with compiling_meanwhile(rehearsed, place):
        weights = load_weights(checkpoint, config, place, kind, experts_at)
    return LLaDA2Model(
        weights,
        config,
        roles,
        name=name or str(folder),
        tokenizer=tokenizer,
        digest=lambda: f"{weights_digest(checkpoint.shards)}:{config}",
        block_size=block_size,
    )


def _expert_place(wanted: str, config: LLaDA2Config, device: torch.device, dtype: torch.dtype) -> ExpertPlace:
    """Return where experts go; refuse early, in one line, what cannot fit."""
    if wanted == "host" or (wanted == "auto" and device.type == "cpu"):
        return "host"
    needed = config.n_parameters * dtype.itemsize
    if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0]:
        raise ModelLoadError(not_enough_memory(config, device, dtype))
    return "device"
