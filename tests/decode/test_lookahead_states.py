"""States that are only looked at, against one forward each."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode import extra_inputs
from orderlens.decode.extra_inputs import hidden_logprobs, mean_entropies
from orderlens.errors import DeviceMemoryError
from orderlens.models.hmm import HiddenMarkovModel

BLOCK = 4


@pytest.fixture(scope="module")
def model():
    return HiddenMarkovModel(seed=1, n_states=3, block_size=BLOCK, incoherence=0.4)


@pytest.fixture
def tried(model):
    """Seven states behind three prefixes of one block each: tokens, with some masks."""
    rng = np.random.default_rng(0)
    prefixes = [rng.integers(0, 12, BLOCK) for _ in range(3)]
    session = model.open_session()
    session.prefill(prefixes, [0, 0, 0])
    slots = rng.integers(0, 3, 7)
    tokens = rng.integers(0, 12, (7, BLOCK))
    masked = rng.random((7, BLOCK)) < 0.5
    masked[:, 1] = True
    tokens[masked] = model.mask_id
    return session, prefixes, slots, tokens, masked


def entropies_by_hand(model, prefix, window, wanted):
    log_p = model.log_probs([*prefix, *window])[BLOCK:][wanted]
    return float(np.mean([-sum(np.exp(x) * x for x in row if x > -np.inf) for row in log_p]))


@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_mean_entropies_are_over_what_is_wanted(model, tried, at_once, monkeypatch):
    monkeypatch.setattr(extra_inputs, "STATES_AT_ONCE", at_once)
    session, prefixes, slots, tokens, masked = tried
    found = mean_entropies(model, session, slots, np.full(7, BLOCK), tokens, masked)
    wanted = [entropies_by_hand(model, prefixes[slots[k]], tokens[k], masked[k]) for k in range(7)]
    assert found == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("at_once", [3, 256])
def test_each_token_is_judged_where_it_alone_is_hidden(model, tried, at_once, monkeypatch):
    monkeypatch.setattr(extra_inputs, "STATES_AT_ONCE", at_once)
    session, prefixes, slots, tokens, masked = tried
    offsets = np.array([int(np.flatnonzero(~row)[0]) if (~row).any() else 0 for row in masked])
    tokens = np.where(masked & (np.arange(BLOCK) == offsets[:, None]), 3, tokens)
    before = tokens.copy()
    found = hidden_logprobs(model, session, slots, np.full(7, BLOCK), tokens, offsets)
    for k in range(7):
        hidden = tokens[k].copy()
        token, hidden[offsets[k]] = hidden[offsets[k]], model.mask_id
        row = model.log_probs([*prefixes[slots[k]], *hidden])[BLOCK + offsets[k]]
        assert found[k] == pytest.approx(row[token], abs=1e-10)
    assert np.array_equal(tokens, before), "the caller's windows stay as they are"


def test_states_that_do_not_fit_together_are_looked_at_in_parts(model, tried, monkeypatch):
    session, _, slots, tokens, masked = tried
    whole = mean_entropies(model, session, slots, np.full(7, BLOCK), tokens, masked)
    evaluate, sizes = session.evaluate, []

    def cramped(states):
        sizes.append(len(states.slots_N))
        if len(states.slots_N) > 2:
            raise DeviceMemoryError("no room")
        return evaluate(states)

    monkeypatch.setattr(session, "evaluate", cramped)
    found = mean_entropies(model, session, slots, np.full(7, BLOCK), tokens, masked)
    assert found == pytest.approx(whole, abs=1e-12)
    assert sizes[0] == 7
    assert sum(size for size in sizes if size <= 2) == 7
    monkeypatch.setattr(session, "evaluate", lambda _: (_ for _ in ()).throw(DeviceMemoryError("none")))
    with pytest.raises(DeviceMemoryError, match="a state that is tried ahead"):
        mean_entropies(model, session, slots, np.full(7, BLOCK), tokens, masked)
