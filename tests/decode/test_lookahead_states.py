"""States that are only looked at, against one forward each."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode import extra_inputs
from orderlens.decode.extra_inputs import leave_one_out_logprobs, remaining_stats
from orderlens.errors import DeviceMemoryError
from orderlens.models.hmm import HiddenMarkovModel

BLOCK = 4


@pytest.fixture(scope="module")
def model():
    return HiddenMarkovModel(seed=1, n_states=3, block_size=BLOCK, incoherence=0.4)


@pytest.fixture
def tried(model):
    """Seven states after three prefixes of one block each: tokens, with some masks."""
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


def sums(model, session, slots, tokens, masked):
    """All numbers of one look-ahead record as columns; the order's own function is y³."""
    found = remaining_stats(model, session, slots, np.full(7, BLOCK), tokens, masked)
    return np.stack([values for _, values in sorted(found.sums(lambda y: y**3).items())], axis=1)


def sums_by_hand(model, prefix, window, wanted):
    rows = model.log_probs([*prefix, *window])[BLOCK:][wanted].tolist()
    y = [max(row) for row in rows]
    entropy = sum(-sum(np.exp(x) * x for x in row if x > -np.inf) for row in rows) / len(rows)
    named = {"entropy": entropy, "least": min(y), "logprob": sum(y), "n": len(y)}
    named |= {"square": sum(x * x for x in y), "value": sum(x**3 for x in y)}
    return [named[name] for name in sorted(named)]


@pytest.mark.parametrize("per_call", [1, 2, 256])
def test_one_record_holds_all_sums_over_the_requested_positions(model, tried, per_call, monkeypatch):
    monkeypatch.setattr(extra_inputs, "STATES_PER_CALL", per_call)
    session, prefixes, slots, tokens, masked = tried
    found = sums(model, session, slots, tokens, masked)
    wanted = [sums_by_hand(model, prefixes[slots[k]], tokens[k], masked[k]) for k in range(7)]
    assert found == pytest.approx(np.array(wanted), abs=1e-10)


@pytest.mark.parametrize("per_call", [3, 256])
def test_each_token_is_scored_with_only_it_masked(model, tried, per_call, monkeypatch):
    monkeypatch.setattr(extra_inputs, "STATES_PER_CALL", per_call)
    session, prefixes, slots, tokens, masked = tried
    offsets = np.array([int(np.flatnonzero(~row)[0]) if (~row).any() else 0 for row in masked])
    tokens = np.where(masked & (np.arange(BLOCK) == offsets[:, None]), 3, tokens)
    before = tokens.copy()
    found = leave_one_out_logprobs(model, session, slots, np.full(7, BLOCK), tokens, offsets)
    for k in range(7):
        hidden = tokens[k].copy()
        token, hidden[offsets[k]] = hidden[offsets[k]], model.mask_id
        row = model.log_probs([*prefixes[slots[k]], *hidden])[BLOCK + offsets[k]]
        assert found[k] == pytest.approx(row[token], abs=1e-10)
    assert np.array_equal(tokens, before), "the caller's windows stay as they are"


def test_states_that_do_not_fit_together_are_looked_at_in_parts(model, tried, monkeypatch):
    session, _, slots, tokens, masked = tried
    whole = sums(model, session, slots, tokens, masked)
    evaluate, sizes = session.evaluate, []

    def cramped(states):
        sizes.append(len(states.slots_N))
        if len(states.slots_N) > 2:
            raise DeviceMemoryError("no room")
        return evaluate(states)

    monkeypatch.setattr(session, "evaluate", cramped)
    found = sums(model, session, slots, tokens, masked)
    assert found == pytest.approx(whole, abs=1e-12)
    assert sizes[0] == 7
    assert sum(size for size in sizes if size <= 2) == 7
    monkeypatch.setattr(session, "evaluate", lambda _: (_ for _ in ()).throw(DeviceMemoryError("none")))
    with pytest.raises(DeviceMemoryError, match="a look-ahead state"):
        sums(model, session, slots, tokens, masked)
