"""The fused head against plain torch: on a CUDA GPU, elsewhere in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter warns of −inf − −inf

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
if INTERPRETED:  # read when a kernel is defined, Triton's own included, so before the import
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton is not installed (the dev extra has it on Linux)")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE, DTYPE)


@pytest.mark.parametrize(("rows", "vocab", "valid"), [(5, 300, 290), (40, 520, 513), (1, 128, 128)])
def test_statistics(rows: int, vocab: int, valid: int) -> None:
    from orderlens.decode.cuda.fused_head import position_stats_fused

    hidden, unembed = randn(rows, 64, seed=1), randn(vocab, 64, seed=2)
    targets = torch.randint(0, valid, (rows,), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    eos = (7, 100)
    token, columns = position_stats_fused(
        hidden, unembed, excluded=(3, valid + 1), valid_vocab=valid, eos_ids=eos, targets_R=targets
    )
    logits = hidden.double() @ unembed.double().T
    logits[:, 3] = -torch.inf
    logits[:, valid:] = -torch.inf
    log_p = torch.log_softmax(logits, dim=1)
    best = log_p.sort(dim=1, descending=True)
    entropy = -(log_p.exp() * log_p.clamp_min(-1e9)).sum(dim=1)
    expected = torch.stack(
        [
            torch.logsumexp(logits, dim=1),
            best.values[:, 0],
            best.values[:, 1],
            entropy,
            torch.logsumexp(log_p[:, list(eos)], dim=1),
            log_p.gather(1, targets[:, None])[:, 0],
        ],
        dim=1,
    )
    assert torch.equal(token, best.indices[:, 0])
    finite = expected.isfinite()
    assert torch.equal(columns.isfinite(), finite)
    assert (columns.double() - expected)[finite].abs().max() < 1e-4
    without = position_stats_fused(hidden, unembed, excluded=(3,), valid_vocab=valid)
    assert without[1].shape == (rows, 5)
    assert without[1][:, 4].isneginf().all()  # no EOS ids, no EOS probability


def test_statistics_of_no_rows() -> None:
    from orderlens.decode.cuda.fused_head import position_stats_fused

    token, columns = position_stats_fused(randn(0, 64), randn(64, 64))
    assert token.shape == (0,)
    assert columns.shape == (0, 5)


@pytest.mark.parametrize(("rows", "vocab", "valid"), [(5, 300, 290), (40, 520, 513), (1, 128, 128)])
@pytest.mark.parametrize("temperature", [0.5, 1.6])
def test_draws(rows: int, vocab: int, valid: int, temperature: float) -> None:
    """The same uniform numbers give the same tokens as the chunked head, but for ties of rounding."""
    from orderlens.decode import head_torch
    from orderlens.decode.cuda.fused_head import FusedHead
    from orderlens.models.protocol import HiddenRows

    hidden, unembed = randn(rows, 64, seed=1, scale=0.5), randn(vocab, 64, seed=2)
    uniforms = np.random.default_rng(5).random(rows)
    uniforms[0] = 0.0
    found, expected = [], []
    for head, into in ((FusedHead(), found), (head_torch.ChunkedHead(), expected)):
        kept = HiddenRows(hidden, unembed, (3, valid + 1), valid, head)
        stats = head_torch.position_stats(kept, (7,))
        draws = head_torch.draw_stats(kept, stats, temperature, uniforms)
        into += [draws.token, draws.logprob, draws.tempered_logprob]
    assert found[0].tolist() == expected[0].tolist()
    assert np.abs(found[1] - expected[1]).max() < 1e-4
    assert np.abs(found[2] - expected[2]).max() < 1e-4


def test_no_draws_from_no_rows() -> None:
    from orderlens.decode.cuda.fused_head import draw_fused

    token, columns = draw_fused(
        randn(0, 64),
        randn(64, 64),
        excluded=(),
        valid_vocab=64,
        temperature=1.0,
        uniforms_R=torch.empty(0, dtype=torch.float64, device=DEVICE),
    )
    assert token.shape == (0,)
    assert columns.shape == (0, 2)


def test_only_half_precision_on_a_gpu_is_fused() -> None:
    from orderlens.decode.cuda.fused_head import can_fuse

    assert not can_fuse(torch.zeros(2, 64), torch.zeros(9, 64))
    assert not can_fuse(torch.zeros(2, 64).bfloat16(), torch.zeros(9, 64).bfloat16())
    if DEVICE.type == "cuda":
        hidden, unembed = randn(2, 64), randn(9, 64)
        assert can_fuse(hidden, unembed)
        assert not can_fuse(hidden.float(), unembed)
        assert not can_fuse(hidden[:, :48], unembed[:, :48])
