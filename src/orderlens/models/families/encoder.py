"""BERT, RoBERTa, ModernBERT and XLNet, through the classes of transformers.

A canvas goes in as it is: no [CLS] and no [SEP] are added, because an inserted token would shift every
position; prompt and suffix may hold them. Position ids, token types and attention are the class's own.

XLNet is order-agnostic by training, through permutation masks instead of a mask token. A state with some
positions hidden becomes a permutation mask (no position attends to a hidden one) and a target mapping (a
query at every position). Ids at hidden positions have no influence, with one exception: where nothing at all
is revealed, every score is masked equally and the published attention falls back on the mean of all
positions. The mask id is there, so that this state too depends on nothing hidden.

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
from orderlens.models.files.configfile import CONFIG, MAX_CONTEXT, Values, read_json
from orderlens.models.files.roles import Published, find_roles
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.options import LoadOptions

XLNET_ROLES = Published(mask_id=6, mask_tokens=("<mask>",), eos_id=2)
XLNET_POSITIONS = 4096
"""Positions are relative, so the network has no limit of its own; it was trained on 512."""


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """One of the three encoders.

    Attributes:
        class_name: its class in transformers.
        mask: name of the mask and its published id.
        end: name of the token that ends a text and its published id.
        padded_start: positions up to the padding id's are never used (RoBERTa).
    """

    class_name: str
    mask: tuple[str, int]
    end: tuple[str, int]
    padded_start: bool = False


def _load_encoder(kind: EncoderKind, folder: Path, name: str, options: LoadOptions) -> CastableModel:
    config, values, tokenizer = _read(folder)
    if values.flag("is_decoder", default=False):
        raise values.error("is_decoder=true is autoregressive: it has no reveal orders")
    vocab_size = values.integer("vocab_size", low=3)
    positions = values.integer("max_position_embeddings", low=2, high=MAX_CONTEXT)
    if kind.padded_start:
        positions -= values.token("pad_token_id", vocab_size, 1) + 1
    ends = None if tokenizer is None else tokenizer.id_of(kind.end[0])
    published = Published(kind.mask[1], (kind.mask[0],), kind.end[1] if ends is None else ends)
    roles = find_roles(folder, config, vocab_size, tokenizer, published)
    source = hf.Source(folder, config, kind.class_name, vocab_size, positions, roles, tokenizer)
    return hf.load_model(source, name, options, lambda tokens_NW: {"input_ids": tokens_NW})


def _read(folder: Path) -> tuple[dict[str, Any], Values, FastTokenizer | None]:
    config = read_json(folder / CONFIG)
    tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
    return config, Values(config, str(folder / CONFIG)), tokenizer


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
    source = hf.Source(folder, config, *shape, roles, tokenizer, mixed=True)
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
