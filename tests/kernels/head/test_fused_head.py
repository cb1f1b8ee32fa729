"""The fused head against plain torch: on a CUDA GPU, elsewhere in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support import kernel_place  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter warns of −inf − −inf

INTERPRETED, DEVICE, DTYPE = kernel_place()
pytest.importorskip("triton", reason="Triton is not installed (the dev extra has it on Linux)")


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE, DTYPE)


@pytest.mark.parametrize(("rows", "vocab", "valid"), [(5, 300, 290), (40, 520, 513), (1, 128, 128)])
def test_statistics(rows: int, vocab: int, valid: int) -> None:
    from orderlens.kernels.head.fused_head import reduce_fused

    hidden, unembed = randn(rows, 64, seed=1), randn(vocab, 64, seed=2)
    targets = torch.randint(0, valid, (rows,), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    eos = (7, 100)
    token, columns = reduce_fused(
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
    without = reduce_fused(hidden, unembed, excluded=(3,), valid_vocab=valid)
    assert without[1].shape == (rows, 5)
    assert without[1][:, 4].isneginf().all()  # no EOS ids, no EOS probability


@pytest.mark.parametrize("temperature", [None, 0.6])
def test_tiles_through_descriptors_give_the_same(temperature: float | None, monkeypatch: Any) -> None:
    from orderlens.kernels.head import panels
    from orderlens.kernels.head.fused_head import Draw, reduce_fused

    hidden, unembed = randn(70, 64, seed=1), randn(300, 64, seed=2)
    uniforms = torch.rand(70, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(DEVICE)
    draw = None if temperature is None else Draw(temperature, uniforms)
    found = []
    for tiled in (False, True):
        tiling = panels.HeadTiling(64, 128, 32, 4, 3, tiled=tiled)
        monkeypatch.setattr(panels, "choose_tiling", lambda *_, tiling=tiling: tiling)
        found.append(reduce_fused(hidden, unembed, excluded=(3,), valid_vocab=290, eos_ids=(7,), draw=draw))
    for plain, other in zip(*found, strict=True):
        assert torch.allclose(plain, other, atol=1e-5)


def test_statistics_of_no_rows() -> None:
    from orderlens.kernels.head.fused_head import reduce_fused

    token, columns = reduce_fused(randn(0, 64), randn(64, 64))
    assert token.shape == (0,)
    assert columns.shape == (0, 5)


@pytest.mark.parametrize(("rows", "vocab", "valid"), [(5, 300, 290), (40, 520, 513), (1, 128, 128)])
@pytest.mark.parametrize("temperature", [0.5, 1.6])
def test_draws(rows: int, vocab: int, valid: int, temperature: float) -> None:
    """The same uniform numbers give the same tokens as the chunked head, but for ties of rounding."""
    from orderlens.decode import head, head_torch
    from orderlens.models.protocol import HiddenRows

    hidden, unembed = randn(rows, 64, seed=1, scale=0.5), randn(vocab, 64, seed=2)
    uniforms = np.random.default_rng(5).random(rows)
    uniforms[0] = 0.0
    found, expected = [], []
    for kind, into in ((head_torch.FusedHead(), found), (head_torch.ChunkedHead(), expected)):
        kept = HiddenRows(hidden, unembed, (3, valid + 1), valid, kind)
        draws = head.draw_stats(kept, (7,), temperature, uniforms)
        into += [draws.token, draws.logprob, draws.tempered_logprob]
    assert found[0].tolist() == expected[0].tolist()
    assert np.abs(found[1] - expected[1]).max() < 1e-4
    assert np.abs(found[2] - expected[2]).max() < 1e-4


@pytest.mark.parametrize(
    ("temperature", "scale"), [(0.05, 0.1), (0.05, 60.0), (1.0, 3.0), (1.7, 60.0), (40.0, 0.1), (40.0, 3.0)]
)
def test_a_draw_lies_where_its_number_falls(temperature: float, scale: float) -> None:
    """Panels of 128 ids, a third of all ids impossible, numbers at both ends of [0, 1)."""
    vocab, rows = 300, 7
    generator = torch.Generator().manual_seed(int(10 * scale))
    excluded = torch.randperm(vocab, generator=generator)[: vocab // 3].tolist()
    hidden, unembed = randn(rows, 64, seed=11, scale=scale / 8), randn(vocab, 64, seed=12)
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2.0**-53
    token, chance = drawn(hidden, unembed, excluded, temperature, uniform)
    logits = hidden.double().cpu() @ unembed.double().cpu().T
    logits[:, excluded] = -torch.inf
    log_p, heated = torch.log_softmax(logits, dim=1), torch.log_softmax(logits / temperature, dim=1)
    upper = heated.exp().cumsum(dim=1)
    each = torch.arange(rows)
    lower = torch.nn.functional.pad(upper, (1, 0))[each, token]
    slack = 1e-6 if INTERPRETED else 1e-3 * scale / temperature + 1e-6
    assert (lower <= uniform + slack).all()
    assert (uniform <= upper[each, token] + slack).all()
    assert not set(token.tolist()) & set(excluded)
    assert torch.allclose(chance[:, 0], log_p[each, token], atol=2e-4 * max(1.0, scale))
    assert torch.allclose(
        chance[:, 1], heated[each, token], atol=2e-4 * max(1.0, scale) / min(1.0, temperature)
    )


def test_whole_panels_may_be_impossible() -> None:
    unembed = torch.zeros(300, 64, device=DEVICE, dtype=DTYPE)
    excluded = [*range(128), *range(256, 300)]
    uniform = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    token, chance = drawn(randn(2, 64), unembed, excluded, 0.8, uniform)
    assert token.tolist() == [128, 255]
    assert torch.allclose(chance, torch.full((2, 2), -np.log(128), dtype=torch.float64), atol=1e-6)


def drawn(hidden: Any, unembed: Any, excluded: list[int], temperature: float, uniform: Any) -> Any:
    from orderlens.kernels.head.fused_head import Draw, reduce_fused

    heat = Draw(temperature, uniform.to(DEVICE))
    found = reduce_fused(hidden, unembed, excluded=excluded, draw=heat)
    return found[2].cpu(), found[3].cpu()


def test_no_draws_from_no_rows() -> None:
    token, chance = drawn(randn(0, 64), randn(64, 64), [], 1.0, torch.empty(0, dtype=torch.float64))
    assert token.shape == (0,)
    assert chance.shape == (0, 2)


@pytest.mark.parametrize(("rows", "width", "parts"), [(5, 256, 8), (1, 64, 4), (33, 256, 4)])
def test_draws_are_the_same_in_parts(rows: int, width: int, parts: int, monkeypatch: Any) -> None:
    """Bit for bit; fewer parts of more rows, none that would change the order of a sum."""
    from orderlens.kernels.head import panel_draw, panels

    hidden, unembed = randn(rows, width, seed=6, scale=0.3), randn(300, width, seed=7)
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    found = []
    for limits, stages, used in ((panel_draw.PARTS, 4, parts), ((), 1, 1)):
        monkeypatch.setattr(panels, "MERGE_STAGES", stages)
        monkeypatch.setattr(panel_draw, "PARTS", limits)
        assert panel_draw.choose_parts(rows, width, 128) == used
        found.append(drawn(hidden, unembed, [3, 290], 0.7, uniform))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("rows", [1, 11])
def test_merging_clears_the_counts_of_who_is_done_and_nothing_else(rows: int) -> None:
    """Nothing else clears what several programs share, and it lies in memory that was used before."""
    from orderlens.kernels.head.fused_head import blank_answer
    from orderlens.kernels.head.panels import choose_tiling, merge_panels, reduce_panels

    nobody = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    tiling = choose_tiling(rows)
    panels = reduce_panels(randn(rows, 64), randn(140, 64, seed=1), 140, nobody, nobody, None, tiling)
    shared = torch.full((rows * (tiling.block_n + 1),), 7, dtype=torch.int32, device=DEVICE)
    merge_panels(panels, 0, *blank_answer(rows, 5, False, DEVICE), shared)
    assert shared[: rows * tiling.block_n].eq(7).all()
    assert shared[rows * tiling.block_n :].eq(0).all()


def test_draws_leave_the_statistics_as_they_are() -> None:
    from orderlens.kernels.head.fused_head import Draw, reduce_fused

    hidden, unembed = randn(6, 64, seed=4), randn(200, 64, seed=5)
    heat = Draw(0.4, torch.rand(6, dtype=torch.float64).to(DEVICE))
    plain = reduce_fused(hidden, unembed, eos_ids=(3,))
    found = reduce_fused(hidden, unembed, eos_ids=(3,), draw=heat)
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1], plain[1])


def test_only_half_precision_on_a_gpu_is_fused() -> None:
    from orderlens.kernels.head.fused_head import can_fuse

    assert not can_fuse(torch.zeros(2, 64), torch.zeros(9, 64))
    assert not can_fuse(torch.zeros(2, 64).bfloat16(), torch.zeros(9, 64).bfloat16())
    if DEVICE.type == "cuda":
        hidden, unembed = randn(2, 64), randn(9, 64)
        assert can_fuse(hidden, unembed)
        assert not can_fuse(hidden.float(), unembed)
        assert not can_fuse(hidden[:, :48], unembed[:, :48])
