"""``log_prob`` is the sampler's likelihood: over all texts it sums to 1, and draws have those frequencies.

A rule that chooses its sets from what is revealed defines a distribution; one that peeks at the target does
not. The model is a stub small enough to enumerate every text.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.score import score_batch
from orderlens.rules import parse_policy
from orderlens.rules.catalogue import ORDERS, PRESETS
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

V, LENGTH, BLOCK = 3, 5, 3
NOTHING = np.zeros(0, np.int64)
SETS = [
    *("max-prob+steps=2", "entropy+cosine=2", "entropy+dream=2", "max-prob+dilated"),
    *(
        "max-prob+threshold=0.5",
        "max-prob+above=0.5:2",
        "max-prob+unanimous=0.4",
        "max-prob+hierarchy=0.3:0.6",
    ),
    *("max-prob+hierarchy=0.3:0.6", "max-prob+factor=1.5", "entropy+bound=0.9", "max-prob+klass=0.4:0.5:1"),
    *("max-prob+near=0.6:0.1", "max-prob+credit=0.6:2:0.5:0.9"),
    *("max-prob+threshold=0.4+spaced=1", "lookahead-gain:n=2:temp=0"),
    "lookahead-entropy:temp=0+unanimous=0.5",
]


def stub(attention="block-causal", block=BLOCK):
    draw = keyed_generator(4, "likelihood")
    table, pull = draw.normal(size=(LENGTH, V)), draw.normal(size=(V, LENGTH, V)) * 2

    @cache
    def row(visible, position):
        shown = [(other, token) for other, token in enumerate(visible) if token < V]
        return sum(
            (pull[token, (other + position) % LENGTH] for other, token in shown), table[position % LENGTH]
        )

    def logits(visible, position):
        return row(tuple(visible.tolist()), position)

    return StubModel(logits, vocab_size=V + 1, block_size=block, attention=attention, eos_ids=(1,))


@pytest.fixture(scope="module")
def texts():
    return [EncodedSample("s", NOTHING, np.array(text)) for text in product(range(V), repeat=LENGTH)]


def totals(policies, texts, attention="block-causal"):
    """Return Σ exp(log_prob) over all texts, by policy."""
    columns = score_batch(stub(attention), texts, policies)
    trace = columns["order"] * len(texts) + columns["sample"]
    return np.exp(np.bincount(trace, columns["logq"])).reshape(len(policies), -1).sum(axis=1)


def test_every_published_sampler_is_a_distribution(texts):
    """Randomised ones, too: along the path of one seed the sets depend on what is revealed alone."""
    named = [parse_policy(name) for name in PRESETS.names()]
    policies = [policy for policy in named if not (policy.revise or policy.search or policy.needs_target)]
    assert {policy.likelihood() for policy in policies} == {"exact", "estimate"}
    assert totals(policies, texts) == pytest.approx(np.ones(len(policies)), abs=1e-9)


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_every_commit_rule_is_a_distribution(attention, texts):
    policies = [parse_policy(spec) for spec in SETS]
    assert {policy.likelihood() for policy in policies} == {"exact"}
    assert totals(policies, texts, attention) == pytest.approx(np.ones(len(policies)), abs=1e-9)


def test_only_target_aware_orders_are_none(texts):
    policies = [parse_policy(f"{name}+top=2") for name in ORDERS.names()]
    for policy, total in zip(policies, totals(policies, texts), strict=True):
        if policy.needs_target:
            assert policy.likelihood() == "none"
            assert abs(total - 1) > 1e-3, "it sees the target, so its sums are not probabilities"
        else:
            assert total == pytest.approx(1, abs=1e-9)
            assert policy.likelihood() == ("estimate" if policy.order.randomised else "exact")


@pytest.mark.parametrize(
    "spec", ["max-prob:argmax+threshold=0.5", "entropy+klass=0.3:0.9:1", "lookahead-gain:n=2:temp=0"]
)
def test_draws_have_the_scored_frequencies(spec, texts):
    # One block, so that nothing is drawn past the text.
    policy, model, n = parse_policy(spec), stub(block=LENGTH), 800
    columns = score_batch(model, texts, [policy])
    wanted = n * np.exp(np.bincount(columns["sample"], columns["logq"]))
    many = [EncodedSample(f"s{i}", NOTHING) for i in range(n)]
    made = generate_batch(model, many, [policy], GenerationSettings(LENGTH, 1.0, 5, stop_at_eos=False))
    digits = V ** np.arange(LENGTH - 1, -1, -1)
    found = np.bincount([int(done.tokens @ digits) for done in made.chains], minlength=len(wanted))
    often = wanted >= 5  # Pearson's statistic over texts that are expected often enough, the rest together
    observed = np.append(found[often], found[~often].sum())
    expected = np.append(wanted[often], wanted[~often].sum())
    statistic, freedom = ((observed - expected) ** 2 / expected).sum(), len(expected) - 1
    assert freedom >= 10
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)
