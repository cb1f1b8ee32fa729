"""Circulation: Γ of adjacent reveals, recomputed from whole-window forwards, with text on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.score import score_batch
from orderlens.policies import parse_policies
from orderlens.rng import keyed_generator
from orderlens.samples import EncodedSample
from orderlens.testing import StubModel
from orderlens.work.measure import circulation_table

V = 5


def stub(attention):
    """Rows that depend on every visible token and fit no joint, so that Γ is not 0."""
    own, seen = (keyed_generator(3, name).normal(size=(16, V)) for name in ("own", "seen"))

    def logits(visible, position):
        shown = [token * 3 + place for place, token in enumerate(visible) if token < V and place != position]
        return own[position] + sum((seen[(key + position) % 16] for key in shown), np.zeros(V))

    return StubModel(logits, vocab_size=V + 1, block_size=4, attention=attention)


@pytest.mark.parametrize("attention", ["full", "block-causal"])
@pytest.mark.parametrize("suffix", [[], [4, 1]])
def test_gamma_is_that_of_the_states_that_scoring_saw(attention, suffix):
    model, orders = stub(attention), parse_policies("random:1,max-prob")
    given = np.array(suffix, np.int64)
    sample = EncodedSample("s", np.array([0, 2]), np.array([1, 4, 2, 0, 3]), suffix=given)
    columns = score_batch(model, [sample], orders)
    rows = circulation_table(model, [sample], orders, columns, 99).to_pylist()
    assert len(rows) == 2 * 3, "two positions in the first block, three in the second"
    truth = np.concatenate([sample.prompt, sample.target, sample.suffix])
    length = len(truth) if suffix else 8
    traced = zip(*(columns[name].tolist() for name in ("order", "position", "logq")), strict=True)
    logq = {(o, position): value for o, position, value in traced}
    for row in rows:
        o = [order.label for order in orders].index(row["order"])
        steps = columns["position"][columns["order"] == o]
        hidden = set(steps[row["step"] :].tolist())
        i, j = row["position_i"], row["position_j"]

        def log_p(position, shown, hidden=hidden):
            window = [t if p not in hidden or p in shown else model.mask_id for p, t in enumerate(truth)]
            window += [model.mask_id] * (length - len(window))
            return model.log_probs(window)[position, truth[position]]

        gamma = log_p(i, ()) + log_p(j, (i,)) - log_p(j, ()) - log_p(i, (j,))
        assert row["gamma"] == pytest.approx(gamma, abs=1e-12)
        assert row["logp_i"] == pytest.approx(logq[o, i], abs=1e-12), "the pass that scored it"
    assert max(abs(row["gamma"]) for row in rows) > 0.01
