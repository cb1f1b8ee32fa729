"""Attention over pages against plain torch: on a CUDA GPU, elsewhere in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor

from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.pages import attend as attend_plainly
from orderlens.models.engine.transfer import Windows, pack
from orderlens.models.families.llada2 import MINI
from support import kernel_place

INTERPRETED, DEVICE, DTYPE = kernel_place()
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
SHAPE = replace(MINI, n_layers=1, n_heads=4, n_kv_heads=2, head_width=16, max_positions=256)
STARTS, WIDTHS, WIDTH = (0, 70, 150), (12, 9, 12), 12


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)


@pytest.mark.parametrize(("few", "splits"), [(8, 1), (8, 2), (0, 1)])
def test_windows_see_their_prefix_and_themselves(
    monkeypatch: pytest.MonkeyPatch, few: int, splits: int
) -> None:
    """The two heads of a group are 24 queries: of few windows with uncut prefixes in two tiles, else in one.

    A window without a prefix, one that does not fill its last page, one with several tiles of keys.
    """
    from orderlens.kernels import attention

    monkeypatch.setattr(attention, "FEW_WINDOWS", few)
    monkeypatch.setattr(attention, "FEW_QUERIES", 16)
    pool = PagePool(SHAPE, DEVICE, DTYPE)
    slots = [pool.open() for _ in STARTS]
    pool.reserve(list(zip(slots, STARTS, strict=True)))
    pool.flush()
    for seed, pages in enumerate((pool.keys[0], pool.values[0])):
        pages.copy_(randn(*pages.shape, seed=seed))
    rows, tokens = np.array([slot.row for slot in slots]), np.zeros((len(STARTS), WIDTH), int)
    packed = pack(rows, np.array(STARTS), np.array(WIDTHS), tokens)
    windows = Windows(torch.from_numpy(packed).to(DEVICE), max(STARTS))
    fused = randn(len(STARTS) * WIDTH, SHAPE.qkv_width, seed=2)
    heads = fused.view(len(STARTS), WIDTH, -1, SHAPE.head_width)
    qk, parts = heads[:, :, :6].flatten(0, 1).contiguous(), heads.transpose(1, 2).split((4, 2, 2), dim=1)
    expected = attend_plainly(*parts, 0, windows, pool).transpose(1, 2).reshape(len(fused), -1)
    found = attention.attend(qk, fused, windows, pool, 0, SHAPE, splits)
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < (1e-5 if INTERPRETED else 2e-2)
