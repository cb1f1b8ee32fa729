"""Tensors that share a piece of memory come to the host in one copy."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orderlens.kernels.head.fused_head import blank_answer  # noqa: E402
from orderlens.models.engine.transfer import shared_storage, split_storage  # noqa: E402


@pytest.mark.parametrize("rows", [1, 6, 7])
@pytest.mark.parametrize("drawn", [False, True])
def test_an_answer_is_one_piece(rows: int, drawn: bool) -> None:
    answer = blank_answer(rows, 5, drawn, torch.device("cpu"))
    for index, tensor in enumerate(answer):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 100 * index)
        assert tensor.storage_offset() * tensor.itemsize % 16 == 0
    shapes = [(rows,), (rows, 5), (rows,), (rows, 2)]
    assert [tuple(tensor.shape) for tensor in answer] == shapes[: len(answer)]
    piece = shared_storage(answer)
    assert piece is not None
    for tensor, part in zip(answer, split_storage(piece.numpy(), answer), strict=True):
        assert part.dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(part, tensor.numpy())


def test_other_tensors_do_not_share_a_piece() -> None:
    one, other = torch.zeros(6), torch.zeros(6)
    large = torch.zeros(100)
    assert shared_storage([one]) is None
    assert shared_storage([one, other]) is None
    assert shared_storage([large[:2], large[2:4]]) is None  # nearly all of it is something else
    assert shared_storage([large.view(50, 2)[:, 0], large.view(50, 2)[:, 1]]) is None
    assert shared_storage([large[:50], large[50:]]) is not None
