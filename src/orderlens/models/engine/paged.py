"""Attention over a paged cache in plain torch: any device, any dtype. The kernels' counterpart.

Shape letters: N windows, W width, T = N·W tokens, H heads, K key/value heads, D head width, X pages.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.shapes import PAGE
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.window import Windows


def store_keys(k_NKWD: Tensor, v_NKWD: Tensor, index: int, windows: Windows, pool: PagePool) -> None:
    """Write the windows' keys and values into their slots' pages."""
    valid_NW = torch.arange(windows.width, device=k_NKWD.device) < windows.widths[:, None]
    positions_NW = windows.positions
    row_T = windows.rows[:, None].expand_as(positions_NW)[valid_NW]
    position_T = positions_NW[valid_NW]
    page_T = pool.table_RX[row_T.long(), (position_T // PAGE).long()].long()
    inside_T = (position_T % PAGE).long()
    pool.keys[index][page_T, :, inside_T] = k_NKWD.transpose(1, 2)[valid_NW]
    pool.values[index][page_T, :, inside_T] = v_NKWD.transpose(1, 2)[valid_NW]


def attend(
    q_NHWD: Tensor, k_NKWD: Tensor, v_NKWD: Tensor, index: int, windows: Windows, pool: PagePool
) -> Tensor:
    """Return attention outputs [N, H, W, D] over each window's cached prefix and the window itself."""
    n_pages = -(-windows.longest_start // PAGE)
    pages_NX = pool.table_RX[windows.rows.long(), :n_pages].long()
    past_k, past_v = (_unpaged(pages_PKSD[pages_NX]) for pages_PKSD in (pool.keys[index], pool.values[index]))
    keys, values = torch.cat((past_k, k_NKWD), dim=2), torch.cat((past_v, v_NKWD), dim=2)
    device = q_NHWD.device
    seen_past = torch.arange(n_pages * PAGE, device=device) < windows.starts[:, None]
    seen_self = torch.arange(windows.width, device=device) < windows.widths[:, None]
    mask_N11X = torch.cat((seen_past, seen_self), dim=1)[:, None, None]
    return functional.scaled_dot_product_attention(q_NHWD, keys, values, attn_mask=mask_N11X, enable_gqa=True)


def _unpaged(pages_NXKSD: Tensor) -> Tensor:
    """Return [N, K, X·S, D]."""
    return pages_NXKSD.transpose(1, 2).flatten(2, 3)
