"""Every registered commit and revise rule obeys its contract: new entries need no test of their own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_generate, reference_score, reference_text
from orderlens.decode.score import score_batch
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policy
from orderlens.rules.catalogue import COMMITS, REVISIONS
from orderlens.texts.samples import EncodedSample

LOSSES = Path(__file__).parents[1] / "support" / "losses.json"
EXAMPLES = {
    "top": ["=2", "=5"],
    "steps": ["=4"],
    "cosine": ["=3"],
    "dream": ["", "=3:0.1"],
    "ancestral": ["=3"],
    "threshold": ["=0.3", "=0.9"],
    "above": ["=0.4", "=0.4:3", "=0.4:3:6"],
    "power": ["=3", "=4:3"],
    "schedule": [f"=3:{LOSSES}"],
    "dilated-sure": ["=0.3", "=0.2:3"],
    "near": ["=0.4", "=1:0.1"],
    "credit": ["=0.5", "=0.4:3:0.5:0.9"],
    "unanimous": ["=0.2"],
    "factor": ["=1.2"],
    "bound": ["=1"],
    "dilated": ["", "=3"],
    "spaced": ["", "=3"],
    "hierarchy": ["=0.2:0.4"],
    "lookahead-sets": ["", "=3:1:4:0"],
    "klass": ["=0.2:0.5", "=0.1:0.9:1", "=0.9:0.1:2:3"],
    "edit": ["=0.2", "=0.5:3"],
    "mask-predict": ["", "=4"],
    "rcr": ["", "=4:cosine", "=3:linear:2"],
    "remdm-fb": ["", "=9"],
    "refine-current": ["=4", "=4:2"],
    "p2": ["", "=4"],
    "remdm-cap": ["", "=9:0.3"],
    "remdm-rescale": ["=0:0.5"],
    "remdm-conf": ["", "=3"],
    "remdm-loop": ["=20", "=20:0.2"],
    "refine": ["", "=4:2"],
    "hierarchy-remask": ["=0.1:0.6", "=0.2:0.3:0.6"],
    "wino": ["", "=0.05:0.6"],
}
"""What to try behind a rule's name; a rule without an entry is tried with ``=1``."""
COMMITTED = [f"{name}{value}" for name in COMMITS.names() for value in EXAMPLES.get(name, ["=1"])]
REVISED = [f"{name}{value}" for name in REVISIONS.names() for value in EXAMPLES.get(name, ["=1"])]
ORDERS = ("forced-ar", "random:1", "entropy")
MODEL = HiddenMarkovModel(seed=2, n_states=4, block_size=6, incoherence=0.5)
SAMPLES = [
    EncodedSample(
        f"s{i}", keyed_generator(i, "p").integers(0, 20, 4 + i), keyed_generator(i, "t").integers(0, 20, 9)
    )
    for i in range(2)
]


def _policies(rule):
    """Every policy to try a revise rule in: one that chooses positions has its order and no commit rule."""
    kind = REVISIONS.get(rule.partition("=")[0])
    if kind.order_id is not None:
        seeds = (":2",) if kind.order_id == "random" else ("",)
        return [parse_policy(f"{kind.order_id}{seed}+{rule}") for seed in seeds]
    return [parse_policy(f"{order}+top=3+{rule}") for order in ORDERS]


@pytest.mark.parametrize("rule", [*COMMITTED, *REVISED])
def test_it_describes_itself(rule):
    policy = parse_policy(f"max-prob+{rule}") if rule in COMMITTED else _policies(rule)[0]
    part = policy.revise or policy.commit
    assert part.summary.startswith(part.id)
    assert parse_policy(policy.spec).spec == policy.spec


@pytest.mark.parametrize("rule", COMMITTED)
@pytest.mark.parametrize("order", ORDERS)
def test_a_commit_rule_scores_and_generates_like_the_slow_path(order, rule):
    policy = parse_policy(f"{order}+{rule}")
    scored = score_batch(MODEL, SAMPLES, [policy])
    made = generate_batch(MODEL, SAMPLES, [policy], GenerationSettings(9, stop_at_eos=False)).columns
    for s, sample in enumerate(SAMPLES):
        for columns, slow in (
            (scored, reference_score(MODEL, sample, policy)),
            (made, reference_generate(MODEL, sample, policy, 9, stop_at_eos=False)),
        ):
            mine = columns["sample"] == s
            assert columns["position"][mine].tolist() == [reveal.position for reveal in slow]
            assert columns["forward"][mine].tolist() == [reveal.forward for reveal in slow]
            assert columns["logq"][mine] == pytest.approx([reveal.logq for reveal in slow], abs=1e-9)


@pytest.mark.parametrize("rule", REVISED)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_revise_rule_generates_like_the_slow_path_and_ends_within_its_bound(rule, temperature):
    policies = _policies(rule)
    settings = GenerationSettings(14, temperature, 3, stop_at_eos=False)
    generation = generate_batch(MODEL, SAMPLES, policies, settings)
    for done in generation.chains:
        slow = reference_text(
            MODEL, SAMPLES[done.sample], policies[done.order], 14,
            temperature=temperature, sample_seed=3, stop_at_eos=False,
        )  # fmt: skip
        reveals, revisions = (
            _of(columns, done) for columns in (generation.columns, generation.revisions or NOTHING)
        )
        assert done.tokens.tolist() == slow.tokens.tolist()
        assert done.n_passes == slow.n_passes
        for name in ("position", "forward", "logq"):
            assert reveals[name] == pytest.approx([getattr(item, name) for item in slow.reveals], abs=1e-9)
            expected = [getattr(item, name) for item in slow.revisions]
            assert revisions[name] == pytest.approx(expected, abs=1e-9, nan_ok=True)
        if policies[done.order].looks_ahead:
            assert reveals["n_lookahead"].sum() == sum(item.n_lookahead for item in slow.events)
        assert revisions["event"].tolist() == [item.event for item in slow.revisions]
        assert revisions["new_token"].tolist() == [item.token for item in slow.revisions]
        start, rule_of = len(SAMPLES[done.sample].prompt), policies[done.order].revise
        assert sorted(reveals["position"].tolist()) == list(range(start, done.canvas.end))
        assert not np.isin(done.tokens, [MODEL.mask_id]).any()
        edges = [start, *range(start - start % 6 + 6, done.canvas.end + 1, 6)]
        assert done.n_passes <= sum(rule_of.max_passes(b - a) for a, b in pairwise(edges))


NOTHING = {
    name: np.empty(0) for name in ("sample", "order", "position", "forward", "logq", "event", "new_token")
}


def _of(columns, done):
    mine = (columns["sample"] == done.sample) & (columns["order"] == done.order)
    return {name: values[mine] for name, values in columns.items()}
