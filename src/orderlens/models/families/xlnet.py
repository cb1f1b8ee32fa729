"""XLNet: order-agnostic by training, through permutation masks instead of a mask token.

A state with some positions hidden becomes a permutation mask (nobody attends to a hidden position) and a
target mapping (a query at every position). Revealed positions go through the content stream, queries through
the query stream, which knows a position but not its token. Ids at hidden positions have no influence, with
one exception: where nothing at all is revealed, every score is masked alike and the published attention falls
back on the mean of all positions. The mask id stands there, so that this state too depends on nothing hidden.

Shape letters: N canvases, W positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderlens.models.engine import hf
from orderlens.models.engine.model import CastableModel
from orderlens.models.files.configfile import CONFIG, Values, read_json
from orderlens.models.files.roles import Published, find_roles
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.options import LoadOptions

PUBLISHED = Published(mask_id=6, mask_tokens=("<mask>",), eos_id=2)
MAX_POSITIONS = 4096
"""Positions are relative, so the network has no limit of its own; it was trained on 512."""


def load_folder(folder: Path, name: str, options: LoadOptions) -> CastableModel:
    """Load an XLNet checkpoint."""
    source = _source(folder)

    def inputs(tokens_NW: Tensor) -> dict[str, Any]:
        return permutation(tokens_NW, source.roles.mask_id)

    return hf.load_model(source, name, options, inputs)


def permutation(tokens_NW: Tensor, mask_id: int) -> dict[str, Any]:
    """Return the network's inputs: hidden positions are seen by nobody, every position is asked about."""
    count, width = tokens_NW.shape
    hidden_NW = (tokens_NW == mask_id).float()
    return {
        "input_ids": tokens_NW,
        "perm_mask": hidden_NW[:, None, :].expand(count, width, width),
        "target_mapping": torch.eye(width, device=tokens_NW.device).expand(count, width, width),
        "use_mems": False,
    }


def _source(folder: Path) -> hf.Source:
    config = read_json(folder / CONFIG)
    values = Values(config, str(folder / CONFIG))
    values.choice("attn_type", ("bi",), "bi")
    if values.flag("bi_data", default=False):
        raise values.error("bi_data=true is not supported: half of a batch would be read backwards")
    vocab_size = values.integer("vocab_size", 32000, low=3)
    tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
    roles = find_roles(folder, config, vocab_size, tokenizer, PUBLISHED)
    return hf.Source(
        folder, config, "XLNetLMHeadModel", vocab_size, MAX_POSITIONS, roles, tokenizer, mixed=True
    )
