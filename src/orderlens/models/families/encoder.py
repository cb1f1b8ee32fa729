"""BERT, RoBERTa, ModernBERT and XLNet, through the classes of transformers.

A canvas is passed unchanged: no [CLS] and no [SEP] are added, because an inserted token would shift every
position; prompt and suffix may contain them. The classes define position ids, token types and attention.

XLNet is trained to be order-agnostic, with permutation masks instead of a mask token. A state with hidden
positions becomes a permutation mask (no position attends to a hidden one) and a target mapping (a query at
every position). Ids at hidden positions have no influence, with one exception: if nothing is revealed, all
scores are masked equally, and the published attention falls back on the mean of all positions. Hidden
positions hold the mask id, so that even this state does not depend on hidden tokens.

Shape letters: N canvases, W positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderlens.models.engine import hf
from orderlens.models.engine.model import CastableModel
from orderlens.models.files.configfile import CONFIG, MAX_CONTEXT, ConfigValues, read_json, refuse_unsupported
from orderlens.models.files.roles import PublishedTokens, find_roles
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.protocol import LoadOptions

XLNET_ROLES = PublishedTokens(mask_id=6, mask_tokens=("<mask>",), eos_id=2)
XLNET_POSITIONS = 4096
"""Our limit: positions are relative, so the network has none. It was trained on 512 positions."""


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """One of the three encoders.

    Attributes:
        class_name: its class in transformers.
        mask: name of the mask and its published id.
        end: name of the token that ends a text and its published id.
        padded_start: position ids up to the padding id are never used (RoBERTa).
    """

    class_name: str
    mask: tuple[str, int]
    end: tuple[str, int]
    padded_start: bool = False


def _load_encoder(kind: EncoderKind, folder: Path, name: str, options: LoadOptions) -> CastableModel:
    config, values, tokenizer = _read(folder)
    refuse_unsupported(config, {"position_embedding_type": ("absolute",)})
    if values.flag("is_decoder", default=False):
        raise values.error("is_decoder=true means an autoregressive model, which has no reveal orders")
    vocab_size = values.integer("vocab_size", low=3)
    positions = values.integer("max_position_embeddings", low=2, high=MAX_CONTEXT)
    if kind.padded_start:
        usual = None if "pad_token_id" in config else 1  # the class does not replace null by its default
        positions -= values.token("pad_token_id", vocab_size, usual) + 1
    ends = None if tokenizer is None else tokenizer.id_of(kind.end[0])
    published = PublishedTokens(kind.mask[1], (kind.mask[0],), kind.end[1] if ends is None else ends)
    roles = find_roles(folder, config, vocab_size, tokenizer, published)
    source = hf.HFCheckpoint(folder, config, kind.class_name, vocab_size, positions, roles, tokenizer)
    return hf.load_model(source, name, options, lambda tokens_NW: {"input_ids": tokens_NW})


def _read(folder: Path) -> tuple[dict[str, Any], ConfigValues, FastTokenizer | None]:
    config = read_json(folder / CONFIG)
    tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
    return config, ConfigValues(config, str(folder / CONFIG)), tokenizer


_BERT = EncoderKind("BertForMaskedLM", ("[MASK]", 103), ("[SEP]", 102))
_ROBERTA = EncoderKind("RobertaForMaskedLM", ("<mask>", 50264), ("</s>", 2), padded_start=True)
_MODERNBERT = EncoderKind("ModernBertForMaskedLM", ("[MASK]", 50284), ("[SEP]", 50282))
load_bert, load_roberta = partial(_load_encoder, _BERT), partial(_load_encoder, _ROBERTA)
load_modernbert = partial(_load_encoder, _MODERNBERT)


def load_xlnet(folder: Path, name: str, options: LoadOptions) -> CastableModel:
    """Load an XLNet checkpoint."""
    config, values, tokenizer = _read(folder)
    values.choice("attn_type", ("bi",), "bi")
    if values.flag("bi_data", default=False):
        raise values.error("bi_data=true is not supported: half of a batch would be read backwards")
    vocab_size = values.integer("vocab_size", 32000, low=3)
    roles = find_roles(folder, config, vocab_size, tokenizer, XLNET_ROLES)
    shape = ("XLNetLMHeadModel", vocab_size, XLNET_POSITIONS)
    source = hf.HFCheckpoint(folder, config, *shape, roles, tokenizer, mixed=True)
    return hf.load_model(source, name, options, partial(_permutation, mask_id=roles.mask_id))


def _permutation(tokens_NW: Tensor, mask_id: int) -> dict[str, Any]:
    """Return XLNet's inputs: no position sees a hidden one, and every position has a query."""
    count, width = tokens_NW.shape
    hidden_NW = (tokens_NW == mask_id).float()
    return {
        "input_ids": tokens_NW,
        "perm_mask": hidden_NW[:, None, :].expand(count, width, width),
        "target_mapping": torch.eye(width, device=tokens_NW.device).expand(count, width, width),
        "use_mems": False,
    }
