"""Traces worked out from ``model.log_probs`` alone: no head, no statistics, no rules of the package.

The plain decoder of ``orderlens.decode.reference`` shares the head and the rules with the fast one; this file
states the published orders a second time, position by position, and checks every column of a trace.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orderlens.common.rng import draw_stream
from orderlens.common.temperature import TemperatureSchedule
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.score import score_batch
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import Policy, parse_policy
from orderlens.rules.orders import StaticOrder
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

BLOCK = 4


def chain(attention="block-causal", incoherence=0.6):
    return HiddenMarkovModel(
        seed=3, n_states=3, block_size=BLOCK, attention=attention, incoherence=incoherence
    )


def sample(n_prompt=3, n=9, seed=0):
    rng = np.random.default_rng(seed)
    return EncodedSample(f"s{seed}", rng.integers(0, 12, n_prompt), rng.integers(0, 12, n))


def entropy(log_p):
    p = np.exp(log_p)
    return -sum(x * np.log(x) for x in p[p > 0])


RULES = {
    "max-prob": lambda log_p, _: max(log_p),
    "top-margin": lambda log_p, _: np.exp(np.sort(log_p)[-1]) - np.exp(np.sort(log_p)[-2]),
    "entropy": lambda log_p, _: -entropy(log_p),
    "oracle-max-q": lambda log_p, token: log_p[token],
    "oracle-min-q": lambda log_p, token: -log_p[token],
    "oracle-margin": lambda log_p, token: np.exp(log_p[token]) - np.exp(max(np.delete(log_p, token))),
}


def blocks(n_prompt, n):
    """The positions to fill, block by block, on a grid that starts at 0."""
    every = range(n_prompt, n_prompt + n)
    return [list(group) for _, group in itertools.groupby(every, lambda i: i // BLOCK)]


def rounded(value):
    return float(f"{value:.12g}")


def score_by_hand(model, one, rule):
    """Yield a row per reveal: the highest score first, the leftmost among equals."""
    text = np.concatenate([one.prompt, one.target])
    canvas = np.full(-(-len(text) // BLOCK) * BLOCK, model.mask_id)
    canvas[: len(one.prompt)] = one.prompt
    step = 0
    for number, masked in enumerate(blocks(len(one.prompt), len(one.target))):
        left = list(masked)
        while left:
            log_p = model.log_probs(canvas.tolist())
            scores = {i: rounded(rule(log_p[i], text[i])) for i in left}
            best = max(scores.values())
            tied = [i for i in left if scores[i] == best]
            place = min(tied)
            row = log_p[place]
            order = np.sort(row)[::-1]
            yield {
                "block": number,
                "step": step,
                "forward": step,
                "position": place,
                "token_id": text[place],
                "logq": row[text[place]],
                "target_logprob": row[text[place]],
                "competitor_logprob": max(np.delete(row, text[place])),
                "max_logprob": order[0],
                "second_logprob": order[1],
                "entropy": entropy(row),
                "n_tied": len(tied),
                "n_committed": 1,
            }
            canvas[place] = text[place]
            left.remove(place)
            step += 1


def same_rows(columns, rows):
    for name in rows[0]:
        found, wanted = columns[name], [row[name] for row in rows]
        assert np.asarray(found, float) == pytest.approx(np.asarray(wanted, float), abs=1e-9), name


@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize("name", RULES)
def test_every_column_of_a_scored_trace(name, attention):
    model = chain(attention)
    for one in (sample(), sample(0, 5, 1), sample(4, 1, 2), sample(7, 8, 3)):
        columns = score_batch(model, [one], [parse_policy(name)])
        same_rows(columns, list(score_by_hand(model, one, RULES[name])))


def test_equal_positions_are_taken_from_the_left_and_counted():
    """Five rows, three of them equal: the number of ties falls 3, 2, 1."""
    table = np.log([[0.7, 0.3], [0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.9, 0.1]])
    model = StubModel(table, block_size=5)
    one = EncodedSample("a", np.array([], int), np.array([0, 1, 0, 1, 0]))
    columns = score_batch(model, [one], [parse_policy("max-prob")])
    assert columns["position"].tolist() == [1, 2, 4, 0, 3]
    assert columns["n_tied"].tolist() == [3, 2, 1, 1, 1]
    oracle = score_batch(model, [one], [parse_policy("oracle-min-q")])
    # target probabilities 0.7, 0.1, 0.9, 0.4, 0.9: the smallest first, equal ones left to right
    assert oracle["position"].tolist() == [1, 3, 0, 2, 4]
    assert oracle["n_tied"].tolist() == [1, 1, 1, 2, 1]


class Given(StaticOrder):
    """One path, written out."""

    summary = "a given path"

    def __init__(self, path):
        self.id, self._path = f"given-{'-'.join(map(str, path))}", np.array(path)

    def path(self, n_positions, sample_id, block):
        return self._path


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_all_orders_of_four_positions(attention):
    """24 paths: on the coherent chain one sum, on the incoherent one the sums of the conditionals."""
    paths = list(itertools.permutations(range(4)))
    one = sample(4, 4, 5)
    for incoherence in (0.0, 0.8):
        model = chain(attention, incoherence)
        columns = score_batch(model, [one], [Policy(Given(path)) for path in paths])
        sums = np.bincount(columns["order"], columns["logq"])
        for place, path in enumerate(paths):
            canvas = np.full(8, model.mask_id)
            canvas[:4] = one.prompt
            total = 0.0
            for offset in path:
                row = model.log_probs(canvas.tolist())[4 + offset]
                total += row[one.target[offset]]
                canvas[4 + offset] = one.target[offset]
            assert sums[place] == pytest.approx(total, abs=1e-9)
            mine = columns["order"] == place
            assert columns["position"][mine].tolist() == [4 + offset for offset in path]
        exact = model.joint_log_prob([*one.prompt, *one.target]) - model.joint_log_prob(list(one.prompt))
        if incoherence == 0:
            assert sums == pytest.approx(np.full(24, exact), abs=1e-9)
        else:
            assert sums.max() - sums.min() > 0.01


def test_greedy_orders_are_greedy_among_all_orders():
    """Of all 24 paths, oracle-max-q's first reveal is the largest, and oracle-min-q's the smallest."""
    model, one = chain(), sample(4, 4, 6)
    every = score_batch(model, [one], [Policy(Given(path)) for path in itertools.permutations(range(4))])
    first = every["logq"][every["step"] == 0]
    for name, wanted in (("oracle-max-q", first.max()), ("oracle-min-q", first.min())):
        found = score_batch(model, [one], [parse_policy(name)])
        assert found["logq"][0] == pytest.approx(wanted, abs=1e-12)


def generate_by_hand(model, one, name, n_new, temperature=0.0, seed=0, end=None, by_position=False):
    """Yield (position, token, log q, tempered log q): whole blocks, until one holds an EOS."""
    stop = -(-(len(one.prompt) + n_new) // BLOCK) * BLOCK
    canvas = np.full(stop, model.mask_id)
    canvas[: len(one.prompt)] = one.prompt
    for number, masked in enumerate(blocks(len(one.prompt), stop - len(one.prompt))):
        stream, left = draw_stream(seed, one.id, name, number), list(masked)
        while left:
            log_p = model.log_probs(canvas.tolist())
            numbers = stream.random(BLOCK)
            drawn = {}
            for i in left:
                if temperature == 0:
                    drawn[i] = (int(np.argmax(log_p[i])), np.nan)
                    continue
                done, last = (
                    (i % BLOCK, BLOCK - 1) if by_position else (len(masked) - len(left), len(masked) - 1)
                )
                now = temperature if end is None else temperature + (end - temperature) * done / max(last, 1)
                heated = np.exp((log_p[i] - log_p[i].max()) / now)
                heated /= heated.sum()
                token = int(np.searchsorted(np.cumsum(heated), numbers[i % BLOCK], side="right"))
                drawn[i] = (token, np.log(heated[token]))
            scores = {i: rounded(log_p[i][drawn[i][0]]) for i in left}
            if name == "entropy":
                scores = {i: rounded(-entropy(log_p[i])) for i in left}
            place = max(left, key=lambda i: (scores[i], -i))
            token, tempered = drawn[place]
            yield place, token, log_p[place][token], tempered
            canvas[place] = token
            left.remove(place)
        if set(canvas[masked].tolist()) & set(model.eos_ids):
            return


@pytest.mark.parametrize("heat", [(0.0,), (0.5,), (1.0,), (1.2, 0.3), (0.3, 1.2, True)])
@pytest.mark.parametrize("name", ["max-prob", "entropy"])
def test_generated_traces(name, heat):
    temperature = TemperatureSchedule(*heat) if len(heat) > 1 else heat[0]
    for attention in ("block-causal", "full"):
        model = chain(attention)
        for one in (sample(3, 0, 1), sample(0, 0, 2), sample(8, 0, 3)):
            settings = GenerationSettings(7, temperature, 5)
            columns = generate_batch(model, [one], [parse_policy(name)], settings).columns
            rows = list(generate_by_hand(model, one, name, 7, heat[0], 5, *heat[1:]))
            assert columns["position"].tolist() == [row[0] for row in rows]
            assert columns["token_id"].tolist() == [row[1] for row in rows]
            assert columns["logq"] == pytest.approx([row[2] for row in rows], abs=1e-9)
            past = columns["position"] >= len(one.prompt) + 7
            assert columns["is_overflow"].tolist() == past.tolist()
            if temperature:
                assert columns["tempered_logq"] == pytest.approx([row[3] for row in rows], abs=1e-9)
            else:
                assert "tempered_logq" not in columns


@pytest.mark.parametrize("place", range(8))
def test_an_eos_anywhere_in_a_block_ends_the_text_after_that_block(place):
    """One position of eight prefers EOS: the block with it is completed and no other is begun."""
    table = np.full((12, 3), -5.0)
    table[:, 1] = 0.0
    table[place, 2] = 5.0
    model = StubModel(table, block_size=BLOCK, eos_ids=[2])
    one = EncodedSample("a", np.array([], int), np.array([], int))
    found = generate_batch(model, [one], [parse_policy("forced-ar")], GenerationSettings(12))
    last = place // BLOCK * BLOCK + BLOCK
    assert found.columns["position"].tolist() == list(range(last))
    assert found.columns["token_id"].tolist().index(2) == place
    never = GenerationSettings(12, stop_at_eos=False)
    whole = generate_batch(model, [one], [parse_policy("forced-ar")], never)
    assert whole.columns["position"].tolist() == list(range(12))
