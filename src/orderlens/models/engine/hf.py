"""Loads networks of the transformers library: its classes, our checks, no remote code.

The output layer is removed, so that the network returns hidden states and only requested rows are multiplied
by the output matrix. Forwards are not recorded as CUDA graphs, because these classes may synchronise with the
host. Does not depend on a family.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from orderlens.errors import MissingPackageError, ModelLoadError, one_line
from orderlens.models.engine.device import pick_device, pick_dtype, with_index
from orderlens.models.engine.full import canvas_engine
from orderlens.models.engine.layer_parts import with_bias, with_one
from orderlens.models.engine.model import CastableModel, LoadedNetwork, ModelFacts
from orderlens.models.files.checkpoint import Checkpoint, weights_digest
from orderlens.models.files.configfile import refuse_unknown
from orderlens.models.files.roles import IdsOnlyTokenizer, TokenRoles
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.models.protocol import LoadOptions

Inputs: TypeAlias = Callable[[Tensor], dict[str, Any]]
"""Canvases [N, W] → keyword arguments of the network."""
BLOCK = 32
"""Block size for decoding; these networks define none."""
_OLDER_KEYS = """
    position_embedding_type untie_r output_past directionality pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_size_per_head pooler_type global_attn_every_n_layers global_rope_theta
    local_rope_theta repad_logits_with_grad rope_theta layer_norm_eps
"""
"""Keys of published files that the classes convert or ignore, or that belong to parts we do not use."""
_LAYER = re.compile(r"\.\d+\.")
"""In the names of a layer's tensors; unused tensors of other parts (poolers, other heads) are allowed."""


@dataclass(frozen=True, slots=True)
class HFCheckpoint:
    """A checkpoint folder of a transformers class, and the contents of its files.

    Attributes:
        config: contents of config.json.
        class_name: the class in transformers.
        vocab_size: rows of its output layer.
        max_positions: longest canvas.
        mixed: the class needs float32 weights; a lower precision applies to its matrix products only.
    """

    folder: Path
    config: Mapping[str, Any]
    class_name: str
    vocab_size: int
    max_positions: int
    roles: TokenRoles
    tokenizer: FastTokenizer | None
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a network, known before it is loaded."""

    n_parameters: int
    max_positions: int
    kv_values_per_token: int = 0


@dataclass(frozen=True, slots=True)
class HeadlessNetwork:
    """A transformers network without its output layer.

    Attributes:
        module: returns the hidden states as its ``logits``.
        unembed_VX: matrix of the output layer, with its bias as a column.
        inputs: maps canvases to the module's keyword arguments.
    """

    module: Any
    unembed_VX: Tensor
    inputs: Inputs

    @property
    def device(self) -> torch.device:
        return self.unembed_VX.device

    @property
    def dtype(self) -> torch.dtype:
        return self.unembed_VX.dtype

    @torch.no_grad()
    def canvas(self, tokens_NW: Tensor) -> Tensor:
        """Return hidden states for the output matrix [N, W, X]."""
        lower = self.module.dtype != self.dtype
        with torch.autocast(self.device.type, self.dtype, enabled=lower):
            hidden_NWC = self.module(**self.inputs(tokens_NW.long())).logits
        return with_one(hidden_NWC.to(self.dtype))


def load_model(source: HFCheckpoint, name: str, options: LoadOptions, inputs: Inputs) -> CastableModel:
    """Return the model of a folder, with full attention.

    Raises:
        MissingPackageError: transformers is not installed.
        ModelLoadError: the checkpoint does not match the class, or weights are missing.
    """
    refuse_unknown(source.config, (*_class(source.class_name).config_class().to_dict(), *_OLDER_KEYS.split()))
    checkpoint = Checkpoint(source.folder)
    device = with_index(pick_device(options.device))

    def load(dtype: torch.dtype) -> LoadedNetwork:
        kind = torch.float32 if source.mixed else dtype
        module = _load_module(source.folder, source.class_name, kind).to(device)
        unembed_VX = with_bias(*_take_output_layer(module)).to(dtype)
        network = HeadlessNetwork(module, unembed_VX, inputs)
        engine = canvas_engine(network, source.max_positions, recorded=False)
        return LoadedNetwork(engine, lambda ids_1L, _: network.canvas(ids_1L), network.unembed_VX)

    facts = ModelFacts(
        name=name,
        size=Size(checkpoint.n_values, source.max_positions),
        vocab_size=source.vocab_size,
        roles=source.roles,
        tokenizer=source.tokenizer or IdsOnlyTokenizer(),
        digest=lambda: f"{weights_digest(checkpoint.shards)}:{json.dumps(source.config, sort_keys=True)}",
        attention="full",
        anchor="prompt",
    )
    loaded = load(pick_dtype(options.dtype, checkpoint.main_dtype))
    return CastableModel(facts, loaded, min(BLOCK, source.max_positions), load)


def _load_module(folder: Path, class_name: str, dtype: torch.dtype) -> Any:
    network_class = _class(class_name)
    try:
        with _quiet():
            module, info = network_class.from_pretrained(
                folder, use_safetensors=True, local_files_only=True, dtype=dtype, output_loading_info=True
            )
    except MemoryError:
        raise
    except Exception as error:  # for a malformed config.json the library raises various types
        raise ModelLoadError(f"{folder} cannot be read as {class_name}: {one_line(error)[:300]}") from error
    _check(folder, class_name, info)
    return module.eval().requires_grad_(False)


def _class(name: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingPackageError(
            f"{name} checkpoints need transformers; pip install 'orderlens[torch,hf]'"
        ) from None
    found = getattr(transformers, name, None)
    if found is None:
        raise MissingPackageError(
            f"transformers {transformers.__version__} has no {name}; pip install -U transformers"
        )
    return found


def _check(folder: Path, class_name: str, info: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that leaves weights of the network randomly initialised, or has more layers."""
    missing = sorted(str(name) for name in info["missing_keys"])
    wrong = sorted(str(item) for item in info["mismatched_keys"])
    extra = sorted(name for name in map(str, info["unexpected_keys"]) if _LAYER.search(name))
    incomplete = f"it is not a complete {class_name} checkpoint"
    another = "config.json has fewer layers; it belongs to another checkpoint"
    for names, what, why in (
        (missing, "lacks", incomplete),
        (wrong, "has a wrong shape for", incomplete),
        (extra, "holds", another),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelLoadError(f"{folder} {what} tensor {names[0]}{more}; {why}")


def _take_output_layer(module: Any) -> tuple[Tensor, Tensor]:
    """Replace the output layer by the identity; return its matrix and bias."""
    layer = module.get_output_embeddings()
    path = next(name for name, part in module.named_modules() if part is layer)
    parent, _, attribute = path.rpartition(".")
    setattr(module.get_submodule(parent), attribute, nn.Identity())
    weight = layer.weight.detach()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    return weight, bias


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's reports while it loads; ``_check`` refuses missing weights."""
    from transformers.utils import logging as reports

    level = reports.get_verbosity()
    reports.set_verbosity(logging.CRITICAL)
    reports.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about keys of a config.json that is not ours
            yield
    finally:
        reports.set_verbosity(level)
        reports.enable_progress_bar()
