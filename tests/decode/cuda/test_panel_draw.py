"""Drawing panel by panel against drawing from the whole row, in plain torch (no Triton, any device)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orderlens.decode import head_torch
from orderlens.decode.cuda.panel_draw import choose_inside, choose_panel
from orderlens.models.protocol import HiddenRows

WIDTH = 16
ROUNDING = 1e-6
"""The kernel sums a panel in float32: a tail below 6e-8 of it is lost, and the draw may stop before it."""


def panels_of(logits_RV: torch.Tensor, temperature: float) -> tuple[torch.Tensor, ...]:
    """What the panel kernel leaves: logits [P, R, K], largest logits and weights [P, R]."""
    padding = -logits_RV.shape[1] % WIDTH
    padded = torch.nn.functional.pad(logits_RV, (0, padding), value=-torch.inf)
    logits_PRK = padded.view(len(logits_RV), -1, WIDTH).transpose(0, 1)
    top_PR = logits_PRK.amax(dim=2)
    base_PR = torch.where(top_PR.isfinite(), top_PR, 0.0)
    return logits_PRK, top_PR, torch.exp((logits_PRK - base_PR[..., None]) / temperature).sum(dim=2)


def draw(
    logits_RV: torch.Tensor, temperature: float, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits_PRK, top_PR, mass_PR = panels_of(logits_RV, temperature)
    choice = choose_panel(top_PR, mass_PR, temperature, uniform_R)
    inside = logits_PRK[choice.panel, torch.arange(len(logits_RV))]
    offset, below, tempered = choose_inside(inside, choice, temperature)
    return choice.panel * WIDTH + offset, below, tempered


@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 90),
    temperature=st.sampled_from([0.05, 0.3, 1.0, 1.7, 40.0]),
    scale=st.sampled_from([0.1, 3.0, 60.0]),
)
@example(seed=590210, vocab=21, temperature=1.0, scale=60.0)
@settings(max_examples=60, deadline=None)
def test_the_same_draw_as_from_the_whole_row(seed: int, vocab: int, temperature: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(7, vocab, generator=generator) * scale).float()
    logits[:, torch.randperm(vocab, generator=generator)[: vocab // 3]] = -torch.inf
    uniform = torch.rand(7, generator=generator, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2.0**-53
    token, below, tempered = draw(logits, temperature, uniform)
    heated = logits.double() / temperature
    cumulative = torch.softmax(heated, dim=1).cumsum(dim=1)
    rows = torch.arange(7)
    after, before = cumulative[rows, token], torch.nn.functional.pad(cumulative, (1, 0))[rows, token]
    assert (before <= uniform + ROUNDING).all()
    assert (uniform <= after + ROUNDING).all()
    assert logits[rows, token].isfinite().all()
    log_p = torch.log_softmax(heated, dim=1)[rows, token]
    assert torch.allclose(tempered, log_p, atol=1e-5)
    assert torch.allclose(below, (logits - logits.amax(1, keepdim=True)).double()[rows, token])


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.0])
def test_the_same_tokens_as_the_chunked_head(temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden, unembed = torch.randn(300, 24, generator=generator), torch.randn(700, 24, generator=generator)
    rows = HiddenRows(hidden, unembed, (5, 640), 690)
    uniform = np.random.default_rng(4).random(300)
    stats = head_torch.position_stats(rows, (7,))
    expected = head_torch.draw_stats(rows, stats, temperature, uniform)
    logits = hidden @ unembed[:690].T
    logits[:, [5, 640]] = -torch.inf
    token, below, tempered = draw(logits, temperature, torch.from_numpy(uniform))
    assert token.tolist() == expected.token.tolist()
    assert np.abs(below.numpy() + stats.top_logprob - expected.logprob).max() < 1e-5
    assert np.abs(tempered.numpy() - expected.tempered_logprob).max() < 1e-5


def test_a_whole_panel_may_be_impossible() -> None:
    logits = torch.zeros(2, 3 * WIDTH)
    logits[:, :WIDTH] = -torch.inf
    logits[:, 2 * WIDTH :] = -torch.inf
    token, _, tempered = draw(logits, 1.0, torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64))
    assert token.tolist() == [WIDTH, 2 * WIDTH - 1]
    assert torch.allclose(tempered, torch.full((2,), -np.log(WIDTH), dtype=torch.float64))


def test_a_model_that_brings_its_own_head_is_asked() -> None:
    hidden, unembed = torch.eye(4)[:3], torch.eye(4)
    asked: list[object] = []

    class Own(head_torch.ChunkedHead):
        def draw(self, rows, stats, temperature, uniforms_R):  # type: ignore[no-untyped-def]
            asked.append((temperature, uniforms_R.tolist()))
            return super().draw(rows, stats, temperature, uniforms_R)

    rows = HiddenRows(hidden, unembed, (1,), 4, Own())
    stats = head_torch.position_stats(rows, ())
    draws = head_torch.draw_stats(rows, stats, 0.6, np.array([0.1, 0.2, 0.3]))
    plain = head_torch.draw_stats(HiddenRows(hidden, unembed, (1,), 4), stats, 0.6, np.array([0.1, 0.2, 0.3]))
    assert asked == [(0.6, [0.1, 0.2, 0.3])]
    assert draws.token.tolist() == plain.token.tolist()
