"""Every registered commit and revise rule obeys its contract: new entries need no test of their own."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import generate_plainly, score_plainly
from orderlens.decode.score import score_batch
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.policies import parse_policy
from orderlens.policies.catalogue import COMMITS, REVISIONS
from orderlens.rng import keyed_generator
from orderlens.samples import EncodedSample

EXAMPLES = {
    "top": ["=2", "=5"],
    "steps": ["=4"],
    "cosine": ["=3"],
    "dream": ["", "=3:0.1"],
    "threshold": ["=0.3", "=0.9"],
    "above": ["=0.4", "=0.4:3"],
    "unanimous": ["=0.2"],
    "factor": ["=1.2"],
    "bound": ["=1"],
    "dilated": ["", "=3"],
    "spaced": ["", "=3"],
    "hierarchy": ["=0.2:0.4"],
    "edit": ["=0.2", "=0.5:3"],
}
"""What to try behind a rule's name; a rule without an entry is tried with ``=1``."""
COMMITTED = [f"{name}{value}" for name in COMMITS.names() for value in EXAMPLES.get(name, ["=1"])]
REVISED = [f"{name}{value}" for name in REVISIONS.names() for value in EXAMPLES.get(name, ["=1"])]
ORDERS = ("forced-ar", "random:1", "max-prob", "entropy")
MODEL = HiddenMarkovModel(seed=2, n_states=4, block_size=6, incoherence=0.5)
SAMPLES = [
    EncodedSample(
        f"s{i}", keyed_generator(i, "p").integers(0, 20, 4 + i), keyed_generator(i, "t").integers(0, 20, 14)
    )
    for i in range(2)
]


@pytest.mark.parametrize("rule", [*COMMITTED, *REVISED])
def test_it_describes_itself(rule):
    policy = parse_policy(f"max-prob+{rule}")
    part = policy.revise or policy.commit
    assert part.summary.startswith(part.id)
    assert parse_policy(policy.spec).spec == policy.spec


@pytest.mark.parametrize("rule", COMMITTED)
@pytest.mark.parametrize("order", ORDERS)
def test_a_commit_rule_scores_and_generates_like_the_slow_path(order, rule):
    policy = parse_policy(f"{order}+{rule}")
    scored = score_batch(MODEL, SAMPLES, [policy])
    made = generate_batch(MODEL, SAMPLES, [policy], GenerationSettings(14, stop_at_eos=False)).columns
    for s, sample in enumerate(SAMPLES):
        for columns, slow in (
            (scored, score_plainly(MODEL, sample, policy)),
            (made, generate_plainly(MODEL, sample, policy, 14, stop_at_eos=False)),
        ):
            mine = columns["sample"] == s
            assert columns["position"][mine].tolist() == [reveal.position for reveal in slow]
            assert columns["forward"][mine].tolist() == [reveal.forward for reveal in slow]
            assert columns["logq"][mine] == pytest.approx([reveal.logq for reveal in slow], abs=1e-9)


@pytest.mark.parametrize("rule", REVISED)
@pytest.mark.parametrize("order", ORDERS)
def test_a_revise_rule_ends_and_fills_every_position(order, rule):
    policy = parse_policy(f"{order}+top=3+{rule}")
    generation = generate_batch(MODEL, SAMPLES, [policy], GenerationSettings(14, stop_at_eos=False))
    for done in generation.chains:
        mine = generation.columns["sample"] == done.sample
        filled = generation.columns["position"][mine]
        assert sorted(filled.tolist()) == list(range(len(SAMPLES[done.sample].prompt), done.canvas.end))
        assert not np.isin(done.tokens, [MODEL.mask_id]).any()
