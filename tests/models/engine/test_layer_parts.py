"""Norms, rotary turns, heads and paged attention against loops over single numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orderlens.kernels.shapes import PAGE  # noqa: E402
from orderlens.models.engine.layer_parts import (  # noqa: E402  # noqa: E402
    rms_norm,
    rotary_at,
    rotary_tables,
    rotate,
    rotated_heads,
    swiglu,
)
from orderlens.models.engine.pages import (  # noqa: E402
    PagePool,
    attend,
    store_keys,
)
from orderlens.models.engine.transfer import Windows, pack  # noqa: E402

CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Shape:
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    head_width: int = 6
    rotary_width: int = 4
    max_positions: int = 96
    norm_eps: float = 1e-3


@dataclass(frozen=True)
class Norms:
    q_norm_D: torch.Tensor | None = None
    k_norm_D: torch.Tensor | None = None


def test_norms_divide_by_the_root_mean_square() -> None:
    x, weight = normal(3, 5), normal(5, seed=1)
    for row, found in zip(x.tolist(), rms_norm(x, weight, 1e-3).tolist(), strict=True):
        size = math.sqrt(sum(value**2 for value in row) / 5 + 1e-3)
        assert found == pytest.approx(
            [v / size * w for v, w in zip(row, weight.tolist(), strict=True)], rel=1e-5
        )


def test_norms_round_before_they_scale() -> None:
    x = torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16)
    weight = torch.tensor([1.0, 257.0], dtype=torch.bfloat16)  # 257 is 256 in bfloat16
    rounded = (x.float() / math.sqrt(5)).to(torch.bfloat16)
    assert torch.equal(rms_norm(x, weight, 0.0), rounded * weight)


def test_swiglu_gates_with_the_first_half() -> None:
    values = [1.0, -2.0, 3.0, 5.0]
    silu = [v / (1 + math.exp(-v)) for v in values[:2]]
    assert swiglu(torch.tensor([values])).tolist()[0] == pytest.approx([silu[0] * 3, silu[1] * 5], rel=1e-6)


def turned(vector: list[float], position: int, width: int, theta: float) -> list[float]:
    """Turn pairs (i, i + width/2) by position · theta^(−2i/width); the rest passes."""
    out, half = list(vector), width // 2
    for i in range(half):
        angle = position * theta ** (-2 * i / width)
        a, b = vector[i], vector[i + half]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


@pytest.mark.parametrize("width", [2, 4, 6])
def test_rotary_turns_pairs_and_leaves_the_rest(width: int) -> None:
    x = normal(2, 3, 5, 6)
    cos, sin = rotary_tables(width, 100.0, 5, CPU, torch.float32)
    found = rotate(x, cos, sin)
    for b, h, t in itertools.product(range(2), range(3), range(5)):
        assert found[b, h, t].tolist() == pytest.approx(
            turned(x[b, h, t].tolist(), t, width, 100.0), abs=1e-5
        )


def test_two_ways_to_the_same_angles() -> None:
    positions = torch.tensor([[0, 7, 3], [4, 4, 90]])
    cos, sin = rotary_at(positions, 4, 50.0)
    whole_cos, whole_sin = rotary_tables(4, 50.0, 91, CPU, torch.float32)
    assert torch.allclose(cos[:, 0], whole_cos[positions], atol=1e-5)
    assert torch.allclose(sin[:, 0], whole_sin[positions], atol=1e-5)


@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_cut_normalised_and_turned(normed: bool) -> None:
    shape = Shape()
    norms = Norms(normal(6, seed=3), normal(6, seed=4)) if normed else Norms()
    positions = torch.tensor([[0, 5], [94, 300]])  # 300 is padding and takes the last row
    fused = normal(4, 8 * 6, seed=2)
    tables = rotary_tables(4, 100.0, shape.max_positions, CPU, torch.float32)
    q, k, v = rotated_heads(fused, norms, tables, positions, shape)
    assert [tuple(part.shape) for part in (q, k, v)] == [(2, 4, 2, 6), (2, 2, 2, 6), (2, 2, 2, 6)]
    for n, w in itertools.product(range(2), repeat=2):
        place = min(int(positions[n, w]), 95)
        heads = fused[2 * n + w].view(8, 6)
        for head in range(8):
            vector = heads[head]
            if head >= 6:
                assert torch.equal(v[n, head - 6, w], vector)
                continue
            weight = norms.q_norm_D if head < 4 else norms.k_norm_D
            vector = vector if weight is None else rms_norm(vector, weight, 1e-3)
            found = q[n, head, w] if head < 4 else k[n, head - 4, w]
            assert found.tolist() == pytest.approx(turned(vector.tolist(), place, 4, 100.0), abs=1e-5)


def windows_of(rows, starts, widths, width: int) -> Windows:
    tokens = np.arange(len(rows) * width).reshape(len(rows), width)
    packed = pack(np.array(rows), np.array(starts), np.array(widths), tokens)
    return Windows(torch.from_numpy(packed), max(starts))


def test_windows_say_where_they_are() -> None:
    windows = windows_of([3, 1], [5, 64], [2, 4], 4)
    assert (windows.count, windows.width) == (2, 4)
    assert windows.rows.tolist() == [3, 1]
    assert windows.starts.tolist() == [5, 64]
    assert windows.widths.tolist() == [2, 4]
    assert windows.positions.tolist() == [[5, 6, 7, 8], [64, 65, 66, 67]]
    assert windows.tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("starts", [(0, 0), (5, 40), (PAGE, 2 * PAGE), (PAGE - 1, PAGE + 1)])
def test_attention_sees_the_cached_prefix_and_the_window(starts: tuple[int, int]) -> None:
    """Store prefixes position by position, then compare with a softmax over everything one may see."""
    shape, width, widths = Shape(), 4, (4, 3)
    pool = PagePool(shape, CPU, torch.float32, 8, 4)
    slots = [pool.open() for _ in starts]
    pool.reserve([(slot, start + width) for slot, start in zip(slots, starts, strict=True)])
    pool.flush()
    past = [(normal(2, 96, 6, seed=10 + n), normal(2, 96, 6, seed=20 + n)) for n in range(2)]
    for n, (slot, start) in enumerate(zip(slots, starts, strict=True)):
        if start:
            filled = windows_of([slot.row], [0], [start], start)
            keys, values = (part[None, :, :start] for part in past[n])
            store_keys(keys, values, 1, filled, pool)
    windows = windows_of([slot.row for slot in slots], list(starts), list(widths), width)
    q, k, v = normal(2, 4, width, 6, seed=5), normal(2, 2, width, 6, seed=6), normal(2, 2, width, 6, seed=7)
    found = attend(q, k, v, 1, windows, pool)
    for n, head, place in itertools.product(range(2), range(4), range(width)):
        if place >= widths[n]:
            continue  # padding
        shared, start = head // 2, starts[n]
        keys = torch.cat((past[n][0][shared, :start], k[n, shared, : widths[n]]))
        values = torch.cat((past[n][1][shared, :start], v[n, shared, : widths[n]]))
        weights = torch.softmax(keys @ q[n, head, place] / math.sqrt(6), 0)
        assert torch.allclose(found[n, head, place], weights @ values, atol=1e-5)


def test_what_is_padding_is_not_stored() -> None:
    pool = PagePool(Shape(), CPU, torch.float32, 8, 4)
    slot = pool.open()
    pool.reserve([(slot, 8)])
    pool.flush()
    before = pool.keys[0][slot.pages[0]].clone()
    windows = windows_of([slot.row], [2], [3], 6)
    store_keys(torch.ones(1, 2, 6, 6), torch.ones(1, 2, 6, 6), 0, windows, pool)
    page = pool.keys[0][slot.pages[0]]
    assert (page[:, 2:5] == 1).all()
    assert torch.equal(page[:, 5:], before[:, 5:])
    assert torch.equal(page[:, :2], before[:, :2])
