"""Without the prefix cache the same numbers come out, state by state."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode import measure
from orderlens.decode.head import target_stats
from orderlens.decode.measure import RecomputingSession
from orderlens.decode.score import score_batch
from orderlens.models.hmm import HmmSession
from orderlens.models.loading import load_model
from orderlens.models.protocol import StateBatch
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

MODEL = load_model("hmm:block=8")
SAMPLES = [EncodedSample(str(i), np.arange(3 + i) % 5, np.arange(20) % 7) for i in range(3)]


@pytest.mark.parametrize("per_call", [512, 5])
def test_scores_are_the_same(monkeypatch, per_call):
    monkeypatch.setattr(measure, "STATES_PER_CALL", per_call)
    orders = parse_policies(["random:3", "max-prob"])
    found = score_batch(MODEL, SAMPLES, orders, open_session=lambda: RecomputingSession(MODEL))
    expected = score_batch(MODEL, SAMPLES, orders)
    assert found["position"].tolist() == expected["position"].tolist()
    assert np.abs(found["logq"] - expected["logq"]).max() < 1e-12


def test_every_state_has_a_prefix_of_its_own(monkeypatch):
    filled, prefill = [], HmmSession.prefill

    def counted(session, prefixes, offsets):
        filled.append(len(prefixes))
        prefill(session, prefixes, offsets)

    monkeypatch.setattr(HmmSession, "prefill", counted)
    session = RecomputingSession(MODEL)
    session.prefill([np.arange(8) % 5, np.arange(8) % 3], [0, 0])
    session.extend(np.array([1]), np.array([[1, 2, 3, 1, 2, 3, 1, 2]]))
    session.keep(np.array([1, 0]))
    tokens = np.full((3, 8), MODEL.mask_id)
    states = StateBatch(
        np.array([0, 1, 0]), np.array([16, 8, 8]), tokens, np.array([2, 0, 1]), np.array([0, 1, 2])
    )
    found = target_stats(session.evaluate(states), MODEL.eos_ids, np.array([1, 2, 3]))
    assert filled == [3]
    plain = MODEL.open_session()
    long = np.concatenate([np.arange(8) % 3, [1, 2, 3, 1, 2, 3, 1, 2]])
    plain.prefill([long, np.arange(8) % 5], [0, 0])
    expected = target_stats(plain.evaluate(states), MODEL.eos_ids, np.array([1, 2, 3]))
    assert np.allclose(found.target_logprob, expected.target_logprob, atol=1e-12)
