"""Texts that order alone produces, against following every order one after another."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from orderlens.decode.census_texts import reachable_texts
from orderlens.decode.target_states import plan_canvases
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample


def shy_rule(tokens: np.ndarray, position: int) -> np.ndarray:
    """Return logits of five tokens that depend on everything that is visible."""
    seen = (tokens + 2) * (np.arange(len(tokens)) + 1 + position)
    return 2 * np.sin(np.outer(np.arange(1, 6), seen)).sum(axis=1)


def followed(
    model: StubModel, text: np.ndarray, first: int, order: tuple[int, ...]
) -> tuple[tuple[int, ...], np.ndarray]:
    canvas, values = text.copy(), []
    for i in order:
        row = model.log_probs(canvas.tolist())[first + i]
        canvas[first + i] = int(row.argmax())
        values.append(row.max())
    return tuple(canvas[first : first + len(order)].tolist()), np.array(values)


@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize("eos", [(), (4,)])
@pytest.mark.parametrize("given", [(), (2, 0)])
def test_texts_and_shares_are_those_of_all_orders(
    attention: str, eos: tuple[int, ...], given: tuple[int, ...]
) -> None:
    """Also where a template has tokens after the hole that is followed."""
    model = StubModel(shy_rule, vocab_size=6, block_size=8, attention=attention, eos_ids=eos)  # type: ignore[arg-type]
    prompt, size = np.array([1, 3, 0, 4, 1, 0, 2, 3, 3]), 5
    template = np.array([model.mask_id] * size + list(given) if given else [], np.int64)
    sample = EncodedSample("p", prompt, template=template)
    (canvas,) = plan_canvases(8, [sample], "zero", size)
    found = reachable_texts(model, sample, canvas, size, 10_000)
    text = np.full(16, model.mask_id)
    text[:9] = prompt
    text[14 : 14 + len(given)] = given
    groups: dict[tuple[int, ...], list[np.ndarray]] = {}
    for order in itertools.permutations(range(size)):
        tokens, values = followed(model, text, 9, order)
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos), size)
        groups.setdefault(tokens[:end], []).append(values)
    assert found.is_finished
    assert len(groups) > 1 or eos
    assert {item.tokens for item in found.texts} == set(groups)
    assert sum(item.share for item in found.texts) == pytest.approx(1)
    for item in found.texts:
        values = np.array(groups[item.tokens])
        assert item.share == pytest.approx(len(values) / math.factorial(size))
        assert item.log_q_best == pytest.approx(values.sum(axis=1).max(), abs=1e-9)
        assert item.log_q_mean == pytest.approx(values.sum(axis=1).mean(), abs=1e-9)
        assert item.min_best == pytest.approx(values.min(axis=1).max(), abs=1e-9)
        assert item.var_least == pytest.approx(values.var(axis=1).min(), abs=1e-9)


def test_a_search_past_its_limit_says_that_it_is_not_finished() -> None:
    model = StubModel(shy_rule, vocab_size=6, block_size=8)
    sample = EncodedSample("p", np.arange(8) % 5)
    (canvas,) = plan_canvases(8, [sample], "zero", 6)
    found = reachable_texts(model, sample, canvas, 6, 10)
    assert not found.is_finished
    assert found.texts == ()
    assert found.n_states <= 10
