"""Forwards of few and many windows on tensors without memory: they launch what decoding will launch.

One layer of each kind stands for all of them, and sizes are halved from the widest forward down to one
window, rows likewise, so that every way of cutting the experts' products comes up.

Shape letters: N windows, W width, T tokens, R rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from orderlens.kernels.head.rehearsal import rehearse_head
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.network import ExpertNetwork
from orderlens.models.decoder.triton_ops import TritonOps
from orderlens.models.decoder.weights import DecoderWeights, random_weights
from orderlens.models.engine.graphs import ROW_STEPS, WHOLE_TOKENS
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.window import HEADER, Windows
from orderlens.models.files.roles import TokenRoles

NOWHERE = torch.device("meta")
START = 64
"""A prefix too short to be cut."""


def rehearse(config: DecoderConfig, dtype: torch.dtype, roles: TokenRoles, width: int, widest: int) -> None:
    """Launch forwards of up to ``widest`` tokens in windows of ``width``, and the head on their rows."""
    weights = rehearse_forwards(config, dtype, width, _halved(widest // width))
    rehearse_head(weights.unembed_VC, (roles.mask_id,), roles.valid_vocab, sorted(roles.eos_ids))


def rehearse_forwards(
    config: DecoderConfig, dtype: torch.dtype, width: int, counts: Collection[int]
) -> DecoderWeights:
    """Launch forwards of these numbers of windows; return the weights, which have no memory either."""
    few = replace(config, n_layers=config.n_dense_layers + 1)
    weights = random_weights(few, NOWHERE, dtype)
    network = ExpertNetwork(weights, few, TritonOps(few, NOWHERE, dtype))
    pool = PagePool(few, NOWHERE, dtype, n_pages=2, n_rows=2)
    for count in counts:
        _forwards(network, pool, count, width)
    return weights


def _forwards(network: ExpertNetwork, pool: PagePool, count: int, width: int) -> None:
    windows = Windows(torch.zeros(count, HEADER + width, dtype=torch.int32, device=NOWHERE), START)
    tokens = count * width
    network.store(windows, pool)
    network.hidden(windows, pool)
    if tokens > WHOLE_TOKENS:
        step = tokens // ROW_STEPS
        for steps in range(1, ROW_STEPS):
            rows_R = torch.zeros(steps * step, dtype=torch.int64, device=NOWHERE)
            network.picked(windows, pool, rows_R, store=False)


def _halved(size: int) -> Collection[int]:
    return sorted({max(1, size >> times) for times in range(size.bit_length())}, reverse=True)
