"""Decoding under policies: sets, memory, revisions, given text after the target; fast against slow."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.common.rng import keyed_generator
from orderlens.decode.batches import BatchLimit
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_generate, reference_score
from orderlens.decode.score import score_batch
from orderlens.errors import PluginError, UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policies, parse_policy
from orderlens.rules.orders import ConfidenceOrder
from orderlens.rules.policy import Policy
from orderlens.texts.samples import EncodedSample

SETS = (
    "forced-ar+top=4,random:2+top=3,reverse-ar+threshold=0.6,max-prob+top=4,max-prob+threshold=0.5,"
    "entropy+threshold=0.4,top-margin+top=2,max-prob"
)
KINDS = ["block-causal", "full"]


class Patient(ConfidenceOrder):
    """Prefers positions with an unchanged top token, then confident ones; breaks ties with keyed numbers."""

    id, summary = "patient", "longest unchanged first"

    def scores(self, view):
        before = view.memory.rows("token", -1)
        age = np.where(before == view.stats.top_token, view.memory.rows("age", 0) + 1, 0)
        seen = view.memory.chains("passes", 0)
        assert np.array_equal(seen, view.forward_C), "a chain's memory follows it from pass to pass"
        view.memory.keep_rows("token", view.stats.top_token)
        view.memory.keep_rows("age", age)
        view.memory.keep_chains("passes", seen + 1)
        return age + np.exp(view.stats.top_logprob) + 1e-3 * view.uniforms_R


def model(attention="block-causal", **options):
    return HiddenMarkovModel(seed=5, n_states=4, block_size=8, attention=attention, **options)


def samples(count=4, suffix=0):
    generator = keyed_generator(3, "policies")
    sizes = [(5, 13), (8, 8), (0, 9), (13, 17)][:count]
    return [
        EncodedSample(
            f"s{i}",
            generator.integers(0, 20, p),
            generator.integers(0, 20, n),
            suffix=generator.integers(0, 20, suffix),
        )
        for i, (p, n) in enumerate(sizes)
    ]


def trace(columns, sample, order):
    mine = (columns["sample"] == sample) & (columns["order"] == order)
    return {name: values[mine] for name, values in columns.items()}


def same_as_plain(fast, slow):
    assert fast["position"].tolist() == [reveal.position for reveal in slow]
    assert fast["token_id"].tolist() == [reveal.token for reveal in slow]
    assert fast["forward"].tolist() == [reveal.forward for reveal in slow]
    assert fast["logq"] == pytest.approx([reveal.logq for reveal in slow], abs=1e-9)


@pytest.mark.parametrize("attention", KINDS)
def test_scoring_sets_equals_the_slow_path(attention):
    policies = [
        *parse_policies(SETS),
        Policy(Patient()),
        Policy(Patient(), parse_policy("entropy+top=3").commit),
    ]
    chain = model(attention, incoherence=0.5)
    columns = score_batch(chain, samples(), policies)
    for s, sample in enumerate(samples()):
        for o, policy in enumerate(policies):
            same_as_plain(trace(columns, s, o), reference_score(chain, sample, policy))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("attention", KINDS)
def test_generating_sets_equals_the_slow_path(attention, temperature):
    policies = [*parse_policies(SETS), Policy(Patient(), parse_policy("entropy+threshold=0.5").commit)]
    chain = model(attention, incoherence=0.5)
    columns = generate_batch(chain, samples(), policies, GenerationSettings(14, temperature, 7)).columns
    for s, sample in enumerate(samples()):
        for o, policy in enumerate(policies):
            slow = reference_generate(chain, sample, policy, 14, temperature=temperature, sample_seed=7)
            same_as_plain(trace(columns, s, o), slow)


def test_columns_of_sets_are_consistent():
    columns = score_batch(model(incoherence=0.3), samples(), parse_policies(SETS))
    for s in range(4):
        for o in range(8):
            one = trace(columns, s, o)
            assert one["step"].tolist() == list(range(len(one["step"])))
            passes, counts = np.unique(one["forward"], return_counts=True)
            assert passes.tolist() == list(range(len(passes))), "every pass commits something"
            assert (np.diff(one["forward"]) >= 0).all()
            assert one["n_committed"].tolist() == np.repeat(counts, counts).tolist()
    assert trace(columns, 0, 7)["forward"].tolist() == trace(columns, 0, 7)["step"].tolist()


def test_the_likelihood_of_a_set_is_that_of_independent_draws():
    """The set's members take their log q from one pass, so the sum is Σ log p(x_i | revealed)."""
    chain, sample = model(), samples(1)[0]
    columns = score_batch(chain, [sample], parse_policies("forced-ar+top=4"))
    truth = np.concatenate([sample.prompt, sample.target])
    for step, position in enumerate(columns["position"]):
        start = max(5, position - position % 8)
        first = start + (position - start) // 4 * 4
        window = np.where(np.arange(32) < first, np.pad(truth, (0, 32 - len(truth))), chain.mask_id)
        expected = chain.log_probs(window.tolist())[position, truth[position]]
        assert columns["logq"][step] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("mode", ["score", "generate"])
def test_a_rule_with_memory_takes_the_same_path_alone_and_in_any_batch(mode):
    policies = [
        Policy(Patient()),
        parse_policy("max-prob+threshold=0.5"),
        Policy(Patient(), parse_policy("max-prob+top=2").commit),
    ]
    chain, settings = model(incoherence=0.5), GenerationSettings(20, stop_at_eos=False)

    def run(batch, rules, limit=None):
        if mode == "score":
            return score_batch(chain, batch, rules, limit=limit)
        return generate_batch(chain, batch, rules, settings, limit=limit).columns

    together = run(samples(), policies)
    cut = run(samples()[::-1], policies[::-1], BatchLimit(2))
    for s, sample in enumerate(samples()):
        for o, policy in enumerate(policies):
            alone, beside = run([sample], [policy]), trace(together, s, o)
            assert alone["position"].tolist() == beside["position"].tolist()
            assert alone["logq"] == pytest.approx(beside["logq"], abs=1e-12)
            assert trace(cut, 3 - s, 2 - o)["position"].tolist() == beside["position"].tolist()


def test_memory_survives_a_batch_that_is_cut_in_the_middle(forgetful):
    make, failures = forgetful
    policies = [Policy(Patient()), parse_policy("max-prob+threshold=0.5")]
    settings = GenerationSettings(24, stop_at_eos=False)
    cut = generate_batch(make(model(incoherence=0.5), every=9), samples(), policies, settings).columns
    whole = generate_batch(model(incoherence=0.5), samples(), policies, settings).columns
    assert failures
    for name in ("position", "token_id", "forward", "n_committed", "step"):
        assert cut[name].tolist() == whole[name].tolist()


@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("anchor", ["zero", "prompt"])
def test_every_order_agrees_on_the_exact_model_with_a_suffix(attention, anchor):
    chain = model(attention)
    orders = "forced-ar,reverse-ar,random,max-prob,top-margin,entropy,oracle-max-q,oracle-min-q"
    cut = (3, 3, 3, 2)  # no target ends with a block, in either grid
    given = [
        EncodedSample(x.id, x.prompt, x.target[:-n], suffix=x.suffix)
        for x, n in zip(samples(suffix=6), cut, strict=True)
    ]
    columns = score_batch(chain, given, parse_policies(orders), anchor)
    for s, sample in enumerate(given):
        canvas_end = -(-(len(sample.prompt) + len(sample.target)) // 8) * 8
        if anchor == "prompt":
            canvas_end = len(sample.prompt) + -(-len(sample.target) // 8) * 8
        seen = (
            sample.suffix
            if attention == "full"
            else sample.suffix[: canvas_end - len(sample.prompt) - len(sample.target)]
        )
        expected = _log_prob_between(chain, sample, seen, attention, anchor)
        for o in range(8):
            assert trace(columns, s, o)["logq"].sum() == pytest.approx(expected, abs=1e-9)


def _log_prob_between(chain, sample, seen, attention, anchor):
    """Exact log P(target | prompt, what is seen of the suffix), from joint probabilities by summing out."""
    whole = np.concatenate([sample.prompt, sample.target, seen])
    if attention == "full":
        return chain.joint_log_prob(whole) - _marginal(chain, sample.prompt, len(sample.target), seen)
    start = (len(sample.prompt) + len(sample.target) - 1) // 8 * 8
    if anchor == "prompt":
        start = len(sample.prompt) + (len(sample.target) - 1) // 8 * 8
    start = max(start, len(sample.prompt))  # earlier blocks see the prompt alone
    hidden = len(sample.prompt) + len(sample.target) - start
    return (
        chain.joint_log_prob(whole[:start])
        - chain.joint_log_prob(sample.prompt)
        + (chain.joint_log_prob(whole) - _marginal(chain, whole[:start], hidden, seen))
    )


def _marginal(chain, before, hidden, after):
    """log P(before, anything at ``hidden`` positions, after) by the forward algorithm."""
    belief, tables = chain.parameters.initial_K, chain.parameters
    for token in [*before, *[None] * hidden, *after]:
        seen = belief if token is None else belief * tables.emission_KV[:, token]
        belief = seen @ tables.transition_KK
    return float(np.log(belief.sum()))


@pytest.mark.parametrize("attention", KINDS)
def test_suffixes_equal_the_slow_path(attention):
    chain = model(attention, incoherence=0.4)
    given = [EncodedSample("a", np.arange(5), np.arange(3, 15), suffix=np.arange(4, 9))]
    policies = parse_policies("random:2+top=3,max-prob+threshold=0.4,forced-ar")
    scored = score_batch(chain, given, policies)
    made = generate_batch(chain, given, policies, GenerationSettings(12)).columns
    for o, policy in enumerate(policies):
        same_as_plain(trace(scored, 0, o), reference_score(chain, given[0], policy))
        same_as_plain(trace(made, 0, o), reference_generate(chain, given[0], policy, 12))
    assert sorted(trace(made, 0, 0)["position"].tolist()) == list(range(5, 17)), "nothing past the suffix"


def test_a_template_is_filled_where_it_has_holes():
    chain = model("full")
    hole = chain.mask_id
    template = np.array([hole, hole, 3, 4, *[hole] * 9, 5, hole])
    sample = EncodedSample("t", np.arange(5), suffix=np.arange(6), template=template)
    policies = parse_policies("max-prob+top=2,forced-ar,random")
    generation = generate_batch(chain, [sample], policies, GenerationSettings(99, stop_at_eos=False))
    for o, done in enumerate(generation.chains):
        filled = trace(generation.columns, 0, o)["position"]
        assert sorted(filled.tolist()) == (5 + np.flatnonzero(template == hole)).tolist()
        text = done.tokens[5 : 5 + len(template)]
        assert text[template != hole].tolist() == [3, 4, 5]
        assert hole not in done.tokens.tolist()
        same_as_plain(
            trace(generation.columns, 0, o),
            reference_generate(chain, sample, policies[o], 99, stop_at_eos=False),
        )


def test_a_suffix_that_the_target_cannot_see_is_refused(caplog):
    sample = EncodedSample("s", np.arange(4), np.arange(4), suffix=np.arange(3))
    with pytest.raises(UserInputError, match=r"a new block of 8 at position 8.*block-causal"):
        score_batch(model(), [sample], parse_policies("forced-ar"))
    long = EncodedSample("s", np.arange(4), np.arange(3), suffix=np.arange(9))
    score_batch(model(), [long], parse_policies("forced-ar"))
    assert "for 1 of 1 suffixes the target sees only the tokens in its last block" in caplog.text


def test_edits_are_recorded_and_the_text_settles():
    chain = model(incoherence=3.0)
    policies = parse_policies("max-prob+threshold=0.1+edit=0.2,forced-ar+top=4+edit=0.3:2")
    generation = generate_batch(chain, samples(), policies, GenerationSettings(20, stop_at_eos=False))
    revisions = generation.revisions
    assert len(revisions["position"]) > 0
    assert (revisions["event"] == "edit").all()
    assert (revisions["old_token"] != revisions["new_token"]).all()
    assert (np.exp(revisions["logq"]) > 0.2).all()
    for done in generation.chains:
        reveals = trace(generation.columns, done.sample, done.order)
        held = dict(zip(reveals["position"].tolist(), reveals["token_id"].tolist(), strict=True))
        mine = trace(revisions, done.sample, done.order)
        for position, old, new in zip(
            mine["position"].tolist(), mine["old_token"].tolist(), mine["new_token"].tolist(), strict=True
        ):
            assert held[position] == old
            held[position] = new
        assert all(done.tokens[position] == token for position, token in held.items())
        assert reveals["step"].tolist() == list(range(len(reveals["step"])))


def test_revised_texts_have_no_likelihood():
    with pytest.raises(UserInputError, match=r"score with 'max-prob\+top=2' or use it with generate"):
        score_batch(model(), samples(), parse_policies("max-prob+top=2+edit=0.9"))


class Broken(ConfidenceOrder):
    id, summary = "broken", "fails"

    def scores(self, view):
        return view.stats.no_such_field


def test_a_rule_that_fails_is_named_with_its_package():
    with pytest.raises(
        PluginError, match=r"order 'broken' of '.*test_policies' failed: AttributeError: .*no_such"
    ):
        score_batch(model(), samples(), [Policy(Broken())])
