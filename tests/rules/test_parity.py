"""Event lists of the published samplers: our policies against plain restatements of their rules.

The model is a stub whose logits depend on everything visible, so every pass changes every distribution.
"""

from __future__ import annotations

import math
import runpy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from orderlens.common.rng import keyed_generator, rule_stream
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.score import score_batch
from orderlens.rules import parse_order, parse_policy
from orderlens.rules.catalogue import PRESETS
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

restated = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("restated.py"))))
V, BLOCK, N_BLOCKS, EOS = 7, 12, 2, 2
LENGTH = BLOCK * N_BLOCKS


def rows(seed):
    """Return logits as a function of what is visible: a table, moved by every revealed neighbour."""
    draw = keyed_generator(seed, "parity")
    table, pull = draw.normal(size=(LENGTH, V)) * 1.6, draw.normal(size=(V, 5, V))

    @cache
    def row(visible, position):
        moved = table[position].copy()
        for other in range(max(0, position - 4), min(len(visible), position + 5)):
            if visible[other] < V and other != position:
                moved += pull[visible[other], abs(other - position) % 5] * (1.5 / abs(other - position))
        return moved * (1 + 0.15 * (np.asarray(visible) < V).sum())

    return lambda visible, position: row(tuple(visible.tolist()), position)


@cache
def stub(seed, attention):
    """Return one model per seed, whose rows are remembered: many rules meet the same states."""
    return StubModel(rows(seed), vocab_size=V + 1, block_size=BLOCK, attention=attention, eos_ids=(EOS,))


def plain_events(model, policy, rule, prompt=(), n=LENGTH, suffix=()):
    """Decode greedily with a restated rule; return [(positions of a pass), …] and the text.

    A rule sees the places that its block has to fill, counted from the first of them.
    """
    window = [*prompt, *[model.mask_id] * n, *suffix]
    end, events = len(prompt) + n, []
    for start in range(0, end, BLOCK):
        first, stop = max(start, len(prompt)), min(start + BLOCK, end)
        block = restated.new_block(stop - first, random_path=path_of(policy, stop - first, start // BLOCK))
        stream = rule_stream(policy.seed, "s", policy.spec, start // BLOCK)

        def distributions(tokens, start=start):
            seen = tokens[: start + BLOCK] if model.attention == "block-causal" else tokens
            return np.exp(model.log_probs(seen))[:, :V].tolist()

        def look(tokens, first=first, distributions=distributions):
            ahead = list(window)
            for place, token in tokens.items():
                ahead[first + place] = token
            p = distributions(ahead)
            return [row for row, token in zip(p, ahead, strict=False) if token == model.mask_id]

        while masked := [i for i in range(stop - first) if window[first + i] == model.mask_id]:
            p = distributions(window)[first:stop]
            block.numbers, block.look = stream.random(BLOCK)[first - start :].tolist(), look
            places = rule(p, masked, block)
            block.t += 1
            for i in places:
                window[first + i] = block.tokens.get(i, p[i].index(max(p[i])))
            events.append(sorted(first + i for i in places))
    return events, window


def path_of(policy, n, block):
    path = getattr(policy.order, "path", None)
    return path(n, "s", block).tolist() if path else []


def our_events(columns):
    passes = columns["forward"]
    return [sorted(columns["position"][passes == t].tolist()) for t in range(passes.max() + 1)]


PUBLISHED = {
    "llada": restated.low_confidence(BLOCK),
    "fast-dllm": restated.fast_dllm(0.9),
    "fast-dllm-factor": restated.factor(1.0),
    "fork-dllm": restated.fork_dllm(0.8),
    "eb-sampler": restated.entropy_bounded(0.1),
    "klass": restated.klass(0.9, 0.01),
    "dus": restated.dilated(),
    "llada2.0": restated.threshold_with_floor(0.95, BLOCK),
    "sdar": restated.threshold_with_floor(0.85, BLOCK),
    "dinfer": restated.dinfer(0.9),
    "credit": restated.credit(0.9),
    "hierarchy": restated.hierarchy(0.4, 0.9),
    "dream": restated.dream(),
    "maskgit": restated.maskgit(12),
    "mdlm": restated.ancestral(128),
    "pc-sampler": restated.position_content(0.25, 10.0),
    "uncode": restated.position_content(0.25, 10.0),
    "bd3-lm": restated.random_order,
    "top-k-margin": restated.margin,
    "lookum-nis": restated.lookum(2, 2, 5, 0.1),
}
"""By preset. The two look-ahead presets draw their candidates, so they stand below with temp=0."""

OTHERS = {
    "max-prob+steps=5": restated.low_confidence(5),
    "max-prob+threshold=0.5": restated.fast_dllm(0.5),
    "max-prob+threshold=0": restated.fast_dllm(0.0),
    "max-prob+above=1": restated.fast_dllm(1.1),
    "max-prob+above=0.6:3": restated.threshold_with_floor(0.6, 3),
    "max-prob+near=0.6:0.2": restated.dinfer(0.6, 0.2),
    "max-prob+credit=0.7:3:0.5:0.9": restated.credit(0.7, 3, 0.5, 0.9),
    "max-prob+credit=0.6:0:0:0": restated.dinfer(0.6),
    "max-prob+factor=2.5": restated.factor(2.5),
    "entropy+bound=1": restated.entropy_bounded(1.0),
    "max-prob+klass=0.5:0.3:1": restated.klass(0.5, 0.3, 1),
    "max-prob+klass=0.4:0.5": restated.klass(0.4, 0.5),
    "max-prob+klass=0.4:0.5:3": restated.klass(0.4, 0.5, 3),
    "max-prob+klass=0.9:0.01:2:5": restated.klass(0.9, 0.01, 2, 5),
    "max-prob+klass=0.4:0.5:1:3": restated.klass(0.4, 0.5, 1, 3),
    "max-prob+above=0.6:3:12": restated.threshold_with_floor(0.6, 3, 12),
    "max-prob+dilated-sure=0.3": restated.dilated_sure(0.3),
    "max-prob+dilated-sure=0.6:3": restated.dilated_sure(0.6, 3),
    "gumbel-prob:3+power=5": restated.maskgit(5, gamma=lambda ratio: 1 - ratio**2),
    "gumbel-prob:3+power=4:3": restated.maskgit(4, gamma=lambda ratio: 1 - ratio**3),
    "forced-ar+dilated=3": restated.dilated(3),
    "max-prob+dilated": restated.dilated(2),
    "max-prob+hierarchy=0.3:0.6": restated.hierarchy(0.3, 0.6),
    "entropy+dream=5:0.01": restated.dream(5, 0.01),
    "gumbel-prob:scale=4.5:3+cosine=5": restated.maskgit(5, 4.5),
    "random:3+ancestral=4": restated.ancestral(4),
    "max-prob+threshold=0.4+spaced": restated.spaced(restated.fast_dllm(0.4)),
    "max-prob+spaced=3": restated.spaced(lambda p, masked, block: masked, 3),
    "lookahead-gain:n=4:temp=0+unanimous=0.8": restated.look_ahead(4, 0.8, restated.information_gain(True)),
    "lookahead-entropy:temp=0:bypass=0.6+unanimous=0.6": restated.look_ahead(
        8, 0.6, restated.information_gain(False)
    ),
    "lookahead-ll:temp=0": restated.look_ahead(
        8, 0.8, restated.whole_trace(lambda _, y: sum(y)), all_at_once=False
    ),
    "lookahead-min:temp=0+unanimous=0.8": restated.look_ahead(
        8, 0.8, restated.whole_trace(lambda _, y: min(y))
    ),
    "lookahead-var:temp=0:bypass=1": restated.look_ahead(
        8, 1.1, restated.whole_trace(lambda past, y: -restated.variance([*past, *y]))
    ),
    "lookahead-recover:sigma=0.7:n=5:temp=0": restated.look_ahead(
        5,
        0.8,
        restated.whole_trace(lambda _, y: sum(restated.log_recovery(x, 0.7) for x in y)),
        all_at_once=False,
    ),
    "defer:tau=0.5": restated.leftmost_sure(0.5),
    "even": restated.nearest(lambda past: sum(past) / len(past) if past else 0.0),
    "even+threshold=0.7": restated.nearest(lambda past: sum(past) / len(past) if past else 0.0, 0.7),
    "level:mu=-0.4": restated.nearest(lambda _: -0.4),
    "first-hard": restated.nearest(lambda _: -1e3),
    "eos-damped": restated.eos_damped(0.4, EOS),
    "entropy:5+lookahead-sets=4:3:6:0.5": restated.lookum(4, 3, 6, 0.5),
}
DRAWN = {"info-gain", "lookum"}


def test_every_published_name_that_only_reveals_is_restated():
    policies = {name: parse_policy(name) for name in PRESETS.names()}
    reveal_only = {name for name, own in policies.items() if own.revise is None and own.search is None}
    deployable = {name for name in reveal_only if not parse_policy(name).needs_target}
    assert deployable == set(PUBLISHED) | DRAWN


ATTENTIONS = {"block-causal": (0, 1), "full": (2,)}
"""Seeds of the models by attention."""


@cache
def restated_events(name, attention, seed):
    """Return passes and text of a rule as restated."""
    return plain_events(stub(seed, attention), parse_policy(name), (PUBLISHED | OTHERS)[name])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", [*PUBLISHED, *OTHERS])
def test_events_are_those_of_the_published_rule(name, attention):
    policy = parse_policy(name)
    for seed in ATTENTIONS[attention]:
        model = stub(seed, attention)
        expected, text = restated_events(name, attention, seed)
        blank = EncodedSample("s", np.zeros(0, np.int64))
        settings = GenerationSettings(LENGTH, stop_at_eos=False)
        made = generate_batch(model, [blank], [policy], settings)
        assert our_events(made.columns) == expected
        assert made.chains[0].tokens.tolist() == text
        target = EncodedSample("s", np.zeros(0, np.int64), np.array(text))
        scored = score_batch(model, [target], [policy])
        assert our_events(scored) == expected, "the sampler's own text takes the sampler's path"
        assert scored["logq"].sum() == pytest.approx(made.columns["logq"].sum(), abs=1e-9)


@pytest.mark.parametrize("name", [*PUBLISHED, *OTHERS])
def test_blocks_that_are_partly_given_are_those_of_the_published_rule(name):
    """A prompt that ends inside the first block and a suffix inside the second: 7 and 6 of 12 places."""
    model, policy, prompt, suffix = stub(2, "full"), parse_policy(name), [1, 4, 0, 3, 5], [2, 6, 1, 0]
    expected, text = plain_events(model, policy, (PUBLISHED | OTHERS)[name], prompt, 13, suffix)
    sample = EncodedSample("s", np.array(prompt), suffix=np.array(suffix))
    made = generate_batch(model, [sample], [policy], GenerationSettings(13, stop_at_eos=False))
    assert our_events(made.columns) == expected
    assert made.chains[0].tokens[: len(text)].tolist() == text


def test_the_fixtures_reach_sets_of_several_sizes():
    """A parity of one-by-one paths would say little: most rules must have committed several at once."""
    cases = [(attention, seed) for attention, seeds in ATTENTIONS.items() for seed in seeds]
    largest = {
        name: max(len(places) for case in cases for places in restated_events(name, *case)[0])
        for name in (*PUBLISHED, *OTHERS)
    }
    assert {name for name, size in largest.items() if size == 1} <= {
        *("llada", "pc-sampler", "uncode", "bd3-lm", "top-k-margin", "eos-damped"),
        *("max-prob+above=1", "maskgit"),  # 12 passes for 12 positions
        *("defer:tau=0.5", "even", "level:mu=-0.4", "first-hard"),
        *("lookahead-ll:temp=0", "lookahead-var:temp=0:bypass=1", "lookahead-recover:sigma=0.7:n=5:temp=0"),
    }


def test_look_ahead_presets_differ_only_in_how_candidates_are_drawn():
    for name in DRAWN:
        policy = parse_policy(name)
        twin = parse_policy(policy.order.label + ":temp=0" + "+" + policy.commit.spec)
        assert type(twin.order) is type(policy.order)
        assert (twin.order.n, twin.order.bypass) == (policy.order.n, policy.order.bypass)


def one_block(p, spec):
    """Decode one block whose distributions never change; return the places of every pass."""
    model = StubModel(np.log(np.maximum(p, 1e-300)), block_size=len(p))
    blank = EncodedSample("s", np.zeros(0, np.int64))
    settings = GenerationSettings(len(p), stop_at_eos=False)
    return our_events(generate_batch(model, [blank], [parse_policy(spec)], settings).columns)


def table(*tops, size=4):
    """Rows with the given largest probability, the rest shared evenly."""
    return [[top, *[(1 - top) / (size - 1)] * (size - 1)] for top in tops]


def test_threshold_at_nine_tenths_and_above_one():
    p = table(0.95, 0.901, 0.5, 0.92)
    assert one_block(p, "max-prob+threshold=0.9") == [[0, 1, 3], [2]]
    assert one_block(p, "max-prob+above=1") == [[0], [3], [1], [2]]
    assert one_block(table(1.0, 1.0, 0.5), "max-prob+above=1") == [[0], [1], [2]], "p = 1 is not above 1"
    assert one_block(table(1.0, 1.0, 0.5), "max-prob+threshold=1") == [[0, 1], [2]]


def test_near_takes_all_that_tie_with_the_best_however_high_the_threshold():
    p = table(0.700001, 0.7, 0.7, 0.69)
    assert one_block(p, "max-prob+near=1") == [[0, 1, 2], [3]]
    assert one_block(p, "max-prob+threshold=1") == [[0], [1], [2], [3]]
    assert one_block(p, "max-prob+near=1:0") == [[0], [1, 2], [3]]


def test_credit_commits_what_was_the_best_guess_for_long():
    """Place 2 prefers token 0 until everything else is there, then token 1 by a little."""

    def logits(visible, position):
        others = [token for token in visible if token < 4]
        last = [0.45, 0.5, 0.03, 0.02] if len(others) == 2 else [0.6, 0.3, 0.05, 0.05]
        return np.log([[0.9, 0.04, 0.03, 0.03], [0.8, 0.1, 0.05, 0.05], last][position])

    model = StubModel(logits, vocab_size=5, block_size=3)
    blank, settings = EncodedSample("s", np.zeros(0, np.int64)), GenerationSettings(3)
    specs = ["max-prob+credit=1", "max-prob", "max-prob+credit=1:0:0.2:0.8"]
    made = generate_batch(model, [blank], [parse_policy(spec) for spec in specs], settings)
    assert [chain.tokens.tolist() for chain in made.chains] == [[0, 0, 0], [0, 0, 1], [0, 0, 1]]
    alone = generate_batch(model, [blank], [parse_policy(specs[0])], settings).columns
    assert np.exp(alone["logq"]) == pytest.approx([0.9, 0.8, 0.45]), "log q is the model's own"
    assert alone["token_id"].tolist() == [0, 0, 0]
    assert "tempered_logq" not in alone


def test_factor_takes_no_extra_position_when_the_last_rank_fails():
    """Bounds 1/2 (not asked), 2/3, 3/4: the third fails and is not taken, as the copies would."""
    assert one_block(table(0.9, 0.8, 0.7), "max-prob+factor=1") == [[0, 1], [2]]
    assert one_block(table(0.9, 0.8, 0.76), "max-prob+factor=1") == [[0, 1, 2]]


def test_bounds_in_nats_and_bits_agree():
    assert math.log(2) * 0.144 == pytest.approx(0.1, abs=2e-4)
    p = table(0.97, 0.9, 0.995, 0.6, 0.8)
    bits = restated.entropy_bounded(0.144, unit=math.log(2))
    ours = one_block(p, "entropy+bound=0.1")
    left = [i for i in range(5) if i not in ours[0]]
    assert ours[0] == sorted(bits(p, list(range(5)), None)) == [0, 2]
    assert ours[1] == sorted(bits(p, left, None))


def test_hierarchy_with_two_runs_and_a_tie():
    p = table(0.5, 0.97, 0.6, 0.6, 0.45, 0.3)
    assert one_block(p, "max-prob+hierarchy=0.4:0.9") == [[1], [0, 2, 3], [4], [5]]


def test_klass_waits_for_exactly_h_steady_passes():
    """Rows that never change are steady from the second pass on, so H = 2 commits them in the third."""
    p = table(0.95, 0.94, 0.93, 0.92, 0.5)
    assert one_block(p, "max-prob+klass=0.9:0.01") == [[0], [1], [2, 3], [4]]
    assert one_block(p, "max-prob+klass=0.9:0.01:1") == [[0], [1, 2, 3], [4]]
    assert one_block(p, "max-prob+klass=0.9:0.01:3") == [[0], [1], [2], [3], [4]]


def test_the_margin_is_one_of_probabilities():
    p = [[0.4, 0.2, 0.2, 0.2], [0.6, 0.38, 0.01, 0.01]]
    assert math.log(0.4 / 0.2) > math.log(0.6 / 0.38), "a margin of logarithms would turn them round"
    assert one_block(p, "top-margin") == [[1], [0]]


def test_the_lowest_entropy_comes_first():
    p = [[0.25] * 4, [0.97, 0.01, 0.01, 0.01], [0.6, 0.4 - 2e-9, 1e-9, 1e-9]]
    assert one_block(p, "entropy") == [[1], [2], [0]]
    assert parse_order("entropy").summary == "lowest entropy first"


PERMUTED = [[0.6, 0.25, 0.1, 0.05], [0.05, 0.1, 0.6, 0.25], [0.1, 0.05, 0.25, 0.6], [0.25, 0.6, 0.05, 0.1]]


@pytest.mark.parametrize("order", ["max-prob", "top-margin", "entropy"])
@pytest.mark.parametrize("shift", range(3))
def test_rows_with_the_same_numbers_in_another_order_tie(order, shift):
    """Their sums differ in the last bits; neither the path nor n_tied may depend on that."""
    p = PERMUTED[shift:] + PERMUTED[:shift]
    model = StubModel(np.log(p), block_size=4)
    blank = EncodedSample("s", np.zeros(0, np.int64))
    columns = generate_batch(model, [blank], [parse_policy(order)], GenerationSettings(4)).columns
    assert columns["position"].tolist() == [0, 1, 2, 3]
    assert columns["n_tied"].tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize("bound", [0.55, 0.6, 0.7, 0.9, 0.95])
def test_a_probability_at_the_bound_reaches_it_and_is_not_above_it(bound):
    """exp(log 0.9) need not be 0.9."""
    for size in range(3, 9):
        rest = [(1 - bound) / (size - 1)] * (size - 1)
        p = [[bound, *rest], [*rest, bound], [bound, *rest]]
        assert one_block(p, f"forced-ar+threshold={bound}") == [[0, 1, 2]], size
        assert one_block(p, f"forced-ar+above={bound}") == [[0], [1], [2]], size
        assert one_block(p, f"forced-ar+unanimous={bound}") == [[0, 1, 2]], size
