"""Loads MDLM, BD3-LM and SEDD checkpoints, with GPT-2's tokenizer if they contain none.

The tokenizer is searched in the checkpoint's folder, then in the folder ``$ORDERLENS_GPT2``, then on the hub.
The search starts when text is first encoded or decoded: token ids need no tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from orderlens.common.hub import resolve_snapshot
from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.checkpoint_info import CheckpointReader
from orderlens.models.dit.config import HARMLESS, SEDD_PARTS, DitConfig, parse_bd3lm, parse_mdlm, parse_sedd
from orderlens.models.dit.network import EMBEDDING, DitNetwork, PagedDit, check_tensors, load_weights
from orderlens.models.engine.device import pick_device, pick_dtype, with_index
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.full import canvas_engine
from orderlens.models.engine.model import CastableModel, LoadedNetwork, ModelFacts
from orderlens.models.files.checkpoint import Checkpoint, weights_digest
from orderlens.models.files.configfile import CONFIG, parse_known, read_json
from orderlens.models.files.roles import TokenRoles
from orderlens.models.files.tokenizer import SETTINGS, TOKENIZER, FastTokenizer, has_tokenizer
from orderlens.models.protocol import LoadOptions, Tokenizer

Parser: TypeAlias = Callable[..., DitConfig]
"""(contents of config.json, its path for messages) → shape."""


def _known(parse: Parser) -> Parser:
    """Return ``parse`` for a whole file: it also refuses keys that may change the computation."""

    def read(record: Mapping[str, Any], source: str = CONFIG) -> DitConfig:
        return parse_known(lambda values: parse(values, source), record, (*HARMLESS, *SEDD_PARTS))

    return read


MDLM_READER = CheckpointReader(_known(parse_mdlm), check_tensors)
BD3LM_READER = CheckpointReader(_known(parse_bd3lm), check_tensors)
SEDD_READER = CheckpointReader(_known(parse_sedd), check_tensors)


def load_sedd(folder: Path, name: str, options: LoadOptions, *, sigma: float | None = None) -> CastableModel:
    """Load a SEDD checkpoint with absorbing noise.

    Args:
        folder: holds config.json and safetensors.
        name: the spec that loads this model again.
        options: device and dtype.
        sigma: one noise level for all states; None matches the level to each state's share of masks.
    """

    def parse(record: Mapping[str, Any], source: str) -> DitConfig:
        config = parse_sedd(record, source)
        return config if sigma is None else replace(config, sigmas=(sigma, sigma))

    return _load(parse, folder, name, options)


def _load(parse: Parser, folder: Path, name: str, options: LoadOptions) -> CastableModel:
    path = folder / CONFIG
    config = _known(parse)(read_json(path), str(path))
    checkpoint = Checkpoint(folder)
    check_tensors(checkpoint, config)
    device = with_index(pick_device(options.device))
    dtype = pick_dtype(options.dtype, checkpoint.dtype_of(config.prefix + EMBEDDING))
    tokenizer, roles = _tokens(folder, config)

    def load(kind: torch.dtype) -> LoadedNetwork:
        return _assemble(DitNetwork(load_weights(checkpoint, config, device, kind), config))

    facts = ModelFacts(
        name=name,
        size=config,
        vocab_size=config.vocab_size,
        roles=roles,
        tokenizer=tokenizer,
        digest=lambda: f"{weights_digest(checkpoint.shards)}:{config}",
        attention=config.attention,
        anchor="zero" if config.attention == "block-causal" else "prompt",
    )
    return CastableModel(facts, load(dtype), min(config.block_size, config.max_positions), load)


load_mdlm, load_bd3lm = partial(_load, parse_mdlm), partial(_load, parse_bd3lm)


def _assemble(network: DitNetwork) -> LoadedNetwork:
    """Build the engine and the plain forward of a network."""

    def plain(ids_1L: Tensor, visible_LL: Tensor) -> Tensor:
        positions = torch.arange(ids_1L.shape[1], device=ids_1L.device)[None]
        return network.forward(
            ids_1L,
            positions,
            lambda _, q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=visible_LL),
        )

    config, full = network.config, network.config.attention == "full"
    engine = (
        canvas_engine(network, config.max_positions) if full else ForwardEngine(PagedDit(network), config)
    )
    return LoadedNetwork(engine, plain, network.weights.unembed_VX)


def _tokens(folder: Path, config: DitConfig) -> tuple[Tokenizer, TokenRoles]:
    """Return the tokenizer (the folder's, or GPT-2's) and the token roles."""
    eos, special = config.eos_id, frozenset[int]()
    tokenizer: Tokenizer = Gpt2Tokenizer(config.vocab_size)
    if has_tokenizer(folder):
        own = check_vocabulary(FastTokenizer.from_folder(folder), config.vocab_size, folder)
        named = (own.named_id("eos_token"), own.id_of(END_OF_TEXT), eos)
        eos = next(index for index in named if index is not None)
        tokenizer, special = own, own.special_ids - {eos, config.mask_id}
    return tokenizer, TokenRoles(config.mask_id, frozenset({eos}), special, config.vocab_size)


VARIABLE = "ORDERLENS_GPT2"
HUB = "hf:openai-community/gpt2"
END_OF_TEXT = "<|endoftext|>"


class Gpt2Tokenizer:
    """GPT-2's tokenizer, loaded when it is first needed."""

    def __init__(self, vocab_size: int) -> None:
        """Prepare a tokenizer whose ids must be below ``vocab_size``."""
        self._vocab_size = vocab_size
        self._found: FastTokenizer | None = None
        self._missing: UserInputError | None = None

    def encode(self, text: str) -> list[int]:
        return self._get().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        try:
            return self._get().decode(ids)
        except UserInputError:
            return " ".join(str(int(index)) for index in ids)

    def _get(self) -> FastTokenizer:
        if self._missing is not None:
            raise self._missing
        if self._found is None:
            try:
                self._found = find_gpt2(self._vocab_size)
            except UserInputError as error:
                self._missing = error
                raise
        return self._found


def find_gpt2(vocab_size: int) -> FastTokenizer:
    """Return GPT-2's tokenizer from the folder ``$ORDERLENS_GPT2`` or from the hub.

    Raises:
        ModelLoadError: it is missing, or it has more ids than the model.
    """
    named = os.environ.get(VARIABLE)
    if named is not None and not has_tokenizer(Path(named)):
        raise ModelLoadError(
            f"${VARIABLE} is '{named}', but there is no {TOKENIZER}; set it to a folder with GPT-2's "
            "tokenizer"
        )
    folder = Path(named) if named is not None else _from_hub()
    return check_vocabulary(FastTokenizer.from_folder(folder), vocab_size, folder)


def check_vocabulary(tokenizer: FastTokenizer, vocab_size: int, folder: Path) -> FastTokenizer:
    """Return the tokenizer; refuse one with ids that the model does not have."""
    if tokenizer.largest_id >= vocab_size:
        raise ModelLoadError(
            f"{folder}: the tokenizer has ids up to {tokenizer.largest_id}, but the model's vocabulary has "
            f"{vocab_size} ids; it belongs to another checkpoint"
        )
    return tokenizer


def _from_hub() -> Path:
    try:
        return resolve_snapshot(HUB, patterns=(TOKENIZER, SETTINGS))
    except UserInputError as error:
        raise ModelLoadError(
            f"this checkpoint has no tokenizer, and GPT-2's cannot be fetched ({error}); copy GPT-2's "
            f"{TOKENIZER} into its folder, or set ${VARIABLE} to a folder that contains it"
        ) from None
