"""The bias of an output layer as a column of its matrix."""

from __future__ import annotations

import pytest
import torch

from orderlens.models.engine.layer_parts import with_bias, with_one


@pytest.mark.parametrize("width", [1, 31, 32, 48])
def test_the_product_has_the_bias(width):
    generator = torch.Generator().manual_seed(width)
    hidden = torch.randn(2, 3, width, generator=generator)
    weight, bias = torch.randn(5, width, generator=generator), torch.randn(5, generator=generator)
    rows, matrix = with_one(hidden), with_bias(weight, bias)
    assert rows.shape[-1] == matrix.shape[-1]
    assert matrix.shape[-1] % 32 == 0
    assert torch.allclose(rows @ matrix.T, hidden @ weight.T + bias, atol=1e-5)
    assert torch.equal(matrix[:, :width], weight)
