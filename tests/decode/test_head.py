"""Position statistics of the numpy and torch heads against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from orderlens.common.rng import keyed_generator
from orderlens.decode.head import (
    blank_rows,
    divergence,
    draw_stats,
    position_stats,
    put_rows,
    start_reduction,
    take_rows,
    target_stats,
)
from orderlens.errors import ModelOutputError
from orderlens.models.protocol import HiddenRows, LogProbRows
from orderlens.rules.stats import DrawInputs

EOS = (2, 5)


def rows_of(logits, kind):
    """The same logits as log-probability rows, or as hidden rows with an identity output matrix."""
    if kind == "numpy":
        shifted = logits - logits.max(axis=1, keepdims=True)
        return LogProbRows(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
    torch = pytest.importorskip("torch")
    hidden = torch.tensor(logits, dtype=torch.float32)
    return HiddenRows(hidden, torch.eye(logits.shape[1]), (), logits.shape[1])


@pytest.fixture(params=["numpy", "torch"])
def kind(request):
    return request.param


def test_statistics_equal_their_formulas(kind):
    logits = keyed_generator(0, "head").normal(size=(40, 17)) * 3
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    targets = keyed_generator(1, "head").integers(0, 17, 40)
    found = target_stats(rows_of(logits, kind), EOS, targets)
    stats, tolerance = found.positions, 1e-12 if kind == "numpy" else 2e-6
    ranked = np.sort(p, axis=1)
    assert (stats.top_token == p.argmax(axis=1)).all()
    assert np.allclose(stats.top_logprob, np.log(ranked[:, -1]), atol=tolerance)
    assert np.allclose(stats.second_logprob, np.log(ranked[:, -2]), atol=tolerance)
    assert np.allclose(stats.entropy, scipy_stats.entropy(p, axis=1), atol=tolerance)
    assert np.allclose(stats.eos_logprob, np.log(p[:, list(EOS)].sum(axis=1)), atol=tolerance)
    rows = np.arange(40)
    others = p.copy()
    others[rows, targets] = 0
    assert np.allclose(found.target_logprob, np.log(p[rows, targets]), atol=tolerance)
    assert np.allclose(found.competitor_logprob, np.log(others.max(axis=1)), atol=tolerance)


def test_divergence_is_kullback_and_leiblers(kind):
    now, before = keyed_generator(2, "head").normal(size=(2, 30, 17)) * 2
    now[0] = before[0]
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (now, before))
    found = divergence(rows_of(now, kind), rows_of(before, kind))
    assert found == pytest.approx(scipy_stats.entropy(p, q, axis=1), abs=1e-12 if kind == "numpy" else 1e-5)
    assert found[0] == pytest.approx(0, abs=1e-7)
    assert (found >= 0).all()


def test_divergence_knows_impossible_tokens():
    nothing, even = np.log([[1.0, 1e-300, 1e-300]]), np.log(np.full((1, 3), 1 / 3))
    nothing[0, 1:] = -np.inf
    assert divergence(LogProbRows(nothing), LogProbRows(even)) == pytest.approx([np.log(3)])
    assert np.isinf(divergence(LogProbRows(even), LogProbRows(nothing)))
    faint = np.array([[0.0, -800.0, -np.inf]])  # exp(−800) is 0: its weight is 0 in any case
    assert divergence(LogProbRows(faint), LogProbRows(nothing)).tolist() == [0.0]


def test_excluded_tokens_do_not_move():
    torch = pytest.importorskip("torch")
    now, before = (torch.randn(5, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    some = [HiddenRows(hidden, torch.eye(8), (3, 9), 7) for hidden in (now, before)]
    p, q = (torch.softmax(hidden[:, [0, 1, 2, 4, 5, 6]], 1).numpy() for hidden in (now, before))
    assert divergence(*some) == pytest.approx(scipy_stats.entropy(p, q, axis=1), abs=1e-5)


def test_rows_can_be_kept_and_taken_out_again(kind):
    logits = keyed_generator(3, "head").normal(size=(6, 9))
    store = blank_rows(rows_of(logits, kind), 10)
    put_rows(store, np.array([7, 1, 3, 0, 9, 4]), rows_of(logits, kind))
    kept = take_rows(store, np.array([3, 9]))
    wanted = take_rows(rows_of(logits, kind), np.array([2, 4]))
    assert divergence(kept, wanted) == pytest.approx([0, 0], abs=1e-7)


def test_equal_logits_take_the_lowest_id(kind):
    logits = np.zeros((3, 9))
    logits[1, [4, 7]] = 5.0
    stats = position_stats(rows_of(logits, kind), EOS)
    assert stats.top_token.tolist() == [0, 4, 0]
    assert np.allclose(stats.top_logprob, stats.second_logprob, atol=1e-6)


def test_no_eos_gives_minus_infinity(kind):
    assert np.isneginf(position_stats(rows_of(np.zeros((2, 7)), kind), ()).eos_logprob).all()


def test_rows_that_are_not_finite_are_refused(kind):
    logits = np.zeros((3, 7))
    logits[1, 2] = np.nan
    rows = LogProbRows(logits) if kind == "numpy" else rows_of(logits, kind)
    with pytest.raises(ModelOutputError, match="NaN or all −inf at 1 of 3"):
        position_stats(rows, EOS)


def test_draws_invert_the_distribution_function(kind):
    """A fine grid of uniforms must give every token its exact share."""
    logits = keyed_generator(2, "head").normal(size=(1, 600)) * 2
    grid = (np.arange(4000) + 0.5) / 4000
    rows = take_rows(rows_of(logits, kind), np.zeros(len(grid), np.int64))
    draws = draw_stats(rows, EOS, 1.7, grid)
    weight = np.exp(logits[0] / 1.7)
    share = weight / weight.sum()
    counts = np.bincount(draws.token, minlength=600)
    assert np.abs(counts - 4000 * share).max() <= 1.01
    assert (np.diff(draws.token) >= 0).all()
    assert np.allclose(draws.tempered_logprob, np.log(share)[draws.token], atol=1e-5)
    log_p = logits[0] - np.log(np.exp(logits[0]).sum())
    assert np.allclose(draws.logprob, log_p[draws.token], atol=1e-5)


def test_each_row_may_have_its_own_temperature(kind):
    logits, heat = keyed_generator(7, "head").normal(size=(5, 40)) * 2, np.array([0.3, 1.0, 2.0, 0.7, 0.05])
    rows, uniforms = rows_of(logits, kind), keyed_generator(8, "head").random(5)
    together = draw_stats(rows, EOS, heat, uniforms)
    for row in range(5):
        alone = draw_stats(take_rows(rows, np.array([row])), EOS, heat[row], uniforms[row : row + 1])
        assert alone.token[0] == together.token[row]
        assert alone.tempered_logprob[0] == pytest.approx(together.tempered_logprob[row], abs=1e-5)
    assert len(set(together.tempered_logprob)) == 5


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_uniforms_draw_possible_tokens(kind, uniform):
    logits = np.full((1, 600), -1e30 if kind == "torch" else -np.inf)
    logits[0, [3, 40, 555]] = 1.0
    with np.errstate(invalid="ignore"):
        rows = rows_of(logits, kind)
    draws = draw_stats(rows, EOS, 0.5, np.array([uniform]))
    assert draws.token[0] == (3 if uniform == 0.0 else 555)


@pytest.mark.needs_torch
def test_torch_head_excludes_mask_and_padding():
    torch = pytest.importorskip("torch")
    hidden = torch.tensor([[9.0, 1.0, 2.0, 8.0]])
    rows = HiddenRows(hidden, torch.eye(4), excluded=(0,), valid_vocab=3)
    stats = target_stats(rows, (), np.array([1])).positions
    assert stats.top_token.tolist() == [2]
    assert stats.top_logprob[0] == pytest.approx(2 - np.logaddexp(1, 2), abs=1e-6)


@pytest.mark.needs_torch
def test_torch_head_gives_a_target_that_cannot_be_revealed_probability_zero():
    torch = pytest.importorskip("torch")
    rows = HiddenRows(torch.zeros(3, 4), torch.eye(4), excluded=(0,), valid_vocab=3)
    found = target_stats(rows, (), np.array([0, 1, 3]))  # excluded, ordinary, padding
    np.testing.assert_allclose(found.target_logprob, [-np.inf, -np.log(2), -np.inf], atol=1e-6)


@pytest.mark.needs_torch
def test_torch_head_does_not_depend_on_the_chunk(monkeypatch):
    pytest.importorskip("torch")
    from orderlens.decode import head_torch

    logits = keyed_generator(3, "head").normal(size=(23, 31))
    whole = position_stats(rows_of(logits, "torch"), EOS)
    monkeypatch.setattr(head_torch, "CHUNK_BYTES", 4 * 31 * 5)
    parts = position_stats(rows_of(logits, "torch"), EOS)
    assert np.allclose(whole.entropy, parts.entropy, atol=1e-6)
    assert (whole.top_token == parts.top_token).all()


def test_bf16_operands_give_float32_logits():
    """Logits near 30 would be a multiple of 0.125 in bf16; the head must keep what float32 resolves."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    hidden = (torch.randn(6, 64, generator=generator) * 4).bfloat16()
    unembed = torch.randn(50, 64, generator=generator).bfloat16()
    stats = position_stats(HiddenRows(hidden, unembed, (), 50), EOS)
    logits = hidden.double() @ unembed.double().T
    assert logits.max() > 30
    exact = torch.log_softmax(logits, dim=1).sort(dim=1, descending=True).values
    assert np.abs(stats.second_logprob - exact[:, 1].numpy()).max() < 1e-4
    rounded = torch.log_softmax((hidden @ unembed.T).double(), dim=1).sort(dim=1, descending=True).values
    assert (rounded[:, 1] - exact[:, 1]).abs().max() > 1e-2


def test_one_question_gives_what_three_would(kind):
    logits = keyed_generator(5, "head").normal(size=(9, 40)) * 2
    rows, targets = rows_of(logits, kind), np.arange(9)
    uniforms = keyed_generator(6, "head").random(9)
    found = start_reduction(rows, EOS, targets, DrawInputs(0.7, uniforms))()
    alone = target_stats(rows, EOS, targets), draw_stats(rows, EOS, 0.7, uniforms)
    assert found.draws is not None
    assert found.draws.token.tolist() == alone[1].token.tolist()
    assert np.array_equal(found.draws.tempered_logprob, alone[1].tempered_logprob)
    assert np.array_equal(found.target_logprob, alone[0].target_logprob)
    assert np.array_equal(found.positions.entropy, position_stats(rows, EOS).entropy)
    assert start_reduction(rows, EOS)().draws is None


@pytest.mark.needs_torch
def test_a_model_that_brings_its_own_head_is_asked():
    torch = pytest.importorskip("torch")
    from orderlens.decode import head_torch

    requests = []

    class Own(head_torch.ChunkedHead):
        def reduce(self, rows, eos_ids, targets_R, draw=None):
            requests.append((draw.temperature, draw.uniforms_R.tolist()))
            return super().reduce(rows, eos_ids, targets_R, draw)

    hidden, unembed, uniforms = torch.eye(4)[:3], torch.eye(4), np.array([0.1, 0.2, 0.3])
    draws = draw_stats(HiddenRows(hidden, unembed, (1,), 4, Own()), (), 0.6, uniforms)
    plain = draw_stats(HiddenRows(hidden, unembed, (1,), 4), (), 0.6, uniforms)
    assert requests == [(0.6, [0.1, 0.2, 0.3])]
    assert draws.token.tolist() == plain.token.tolist()
