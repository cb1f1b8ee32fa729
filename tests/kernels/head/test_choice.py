"""The choice in one kernel against plain torch: on a CUDA GPU, elsewhere in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support import kernel_place  # noqa: E402

INTERPRETED, DEVICE, DTYPE = kernel_place()
pytest.importorskip("triton", reason="Triton is not installed (the dev extra has it on Linux)")


@pytest.mark.parametrize("heated", [False, True])
def test_every_reading_with_ties_and_static_chains(heated: bool) -> None:
    from orderlens.decode.passes import NextRows
    from orderlens.decode.speculate_torch import choose_by_kernel, choose_in_torch
    from orderlens.rules.orders import READINGS

    numbers = np.random.default_rng(0)
    n_C = np.array([5, 2, 1, 9, 4, 1, 7])
    first_C, count, width = np.cumsum(n_C) - n_C, int(n_C.sum()), 12
    chain_R = np.repeat(np.arange(len(n_C)), n_C)
    offset_R = np.concatenate([np.sort(numbers.permutation(width)[:n]) for n in n_C])
    fixed_C = np.where(n_C == 1, count + np.cumsum(n_C == 1) - 1, -1)
    place_A = np.concatenate((chain_R * width + offset_R, np.flatnonzero(n_C == 1) * width + 3))
    uniforms_A = numbers.random(len(place_A)) if heated else None
    following = NextRows(first_C, n_C, fixed_C, place_A, width, 1.0, uniforms_A)
    columns = -torch.from_numpy(numbers.integers(1, 5, (count, 5)).astype(np.float32)) / 4  # many ties
    found = [torch.from_numpy(numbers.integers(0, 99, count)), columns]
    if heated:
        drawn = torch.from_numpy(numbers.integers(0, 99, count))
        found += [drawn, -torch.from_numpy(numbers.integers(1, 4, (count, 2)).astype(np.float64))]
    found = [tensor.to(DEVICE) for tensor in found]
    for kind in range(len(READINGS) if heated else len(READINGS) - 1):
        kind_C = np.where(np.arange(len(n_C)) % 3 == 2, 0, kind)
        expected, got = choose_in_torch(found, following, kind_C), choose_by_kernel(found, following, kind_C)
        assert (expected[3] is None) == (not heated)
        for one, other in zip(expected, got, strict=True):
            assert one is other is None or (one.dtype == other.dtype and torch.equal(one, other))
