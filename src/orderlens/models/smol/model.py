"""``smol`` for ``load_model`` (base and adapter, order-agnostic) and ``smol-ar`` (the original)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.evaluators.small import SmallEvaluator
from orderlens.models.families.small import FastModel, as_model
from orderlens.models.files.chat import ChatTemplate
from orderlens.models.files.roles import TokenRoles
from orderlens.models.protocol import LoadOptions
from orderlens.models.small.folder import LoadedModel
from orderlens.models.small.model import TransformerModel
from orderlens.models.small.network import Transformer
from orderlens.models.smol.adapter import SETTINGS, Adapter, check_adapter, load_adapter, merge
from orderlens.models.smol.base import SHA256, check_base, require_base
from orderlens.models.smol.llama import CONTROL, GgufFile, read_network, read_shape, read_tokenizer

END_OF_TEXT, TURN_END = 0, 2
"""Ids of the end of a document and of the end of a turn: both end a text."""


def adapter_folder() -> Path:
    """Return the folder of the adapter inside the installed package."""
    return Path(str(files("orderlens"))) / "models" / "data" / "smol"


def load_smol(argument: str, options: LoadOptions) -> TransformerModel | FastModel:
    """Load ``smol``: the cached base file with the packaged adapter merged in."""
    if argument:
        raise UserInputError(f"model 'smol:{argument}': smol takes no options")
    path = require_base()
    check_base(path)
    if not (adapter_folder() / SETTINGS).is_file():
        raise ModelLoadError(
            "this installation has no adapter for smol; train one with recipes/smol.py or install a release"
        )
    return build(path, adapter_folder(), SHA256, options)


def build(base: Path, adapter: Path, base_digest: str, options: LoadOptions) -> TransformerModel | FastModel:
    """Return the order-agnostic model of a base file and an adapter folder."""
    file, found = GgufFile(base), load_adapter(adapter)
    network, mask_id = merged(file, found, adapter), found.settings.mask_id
    roles = TokenRoles(
        mask_id,
        frozenset({END_OF_TEXT, TURN_END}),
        control_ids(file) - {END_OF_TEXT, TURN_END, mask_id},
        network.config.vocab_size,
    )
    chat = ChatTemplate(file.metadata["tokenizer.chat_template"], {})
    digest = f"{base_digest[:16]}-{found.digest}"
    return as_model(network, options, "smol", roles, read_tokenizer(file.metadata), digest, chat)


def merged(file: GgufFile, adapter: Adapter, where: Path) -> Transformer:
    """Return the base's network with the adapter merged in, in float32 on the CPU."""
    settings = adapter.settings
    config = read_shape(
        file.metadata,
        "block-causal",
        block_size=settings.block_size,
        mask_id=settings.mask_id,
        eos_id=TURN_END,
    )
    network = read_network(file, config)
    check_adapter(adapter, network, where)
    merge(network, adapter.state, settings)
    return network


def control_ids(file: GgufFile) -> frozenset[int]:
    """Return the ids of control tokens, which have no text."""
    kinds = file.metadata["tokenizer.ggml.token_type"]
    return frozenset(index for index, kind in enumerate(kinds) if kind == CONTROL)


def read_original(base: Path, mask_id: int, digest: str) -> LoadedModel:
    """Return the base as published: causal, each document preceded by the end-of-text token."""
    file = GgufFile(base)
    config = read_shape(file.metadata, "causal", mask_id=mask_id, eos_id=END_OF_TEXT)
    return LoadedModel(read_network(file, config), config, read_tokenizer(file.metadata), digest)


def load_evaluator(argument: str = "", device: str | None = None) -> SmallEvaluator:
    """Load the autoregressive original as an external evaluator."""
    if argument:
        raise UserInputError(f"evaluator 'smol-ar:{argument}': smol-ar takes no options")
    path = require_base()
    check_base(path)
    return SmallEvaluator(read_original(path, 16, SHA256), "smol-ar", device)
