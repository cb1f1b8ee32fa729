"""The sorted-hash Kneser–Ney against a plain one made of dictionaries."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from ngram import KneserNey

from orderlens.common.rng import keyed_generator

VOCAB = 6
TOKENS = keyed_generator(0, "ngram").choice(VOCAB, 400, p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05])


def plain_counts(n: int, length: int) -> Counter[tuple[int, ...]]:
    grams = [tuple(TOKENS[i : i + n]) for i in range(len(TOKENS) - n + 1)]
    if n == length:
        return Counter(grams)
    longer = {tuple(TOKENS[i : i + n + 1]) for i in range(len(TOKENS) - n)}
    return Counter(gram[1:] for gram in longer)


def plain_prob(context: tuple[int, ...], token: int, length: int) -> float:
    n = len(context) + 1
    lower = plain_prob(context[1:], token, length) if context else 1 / VOCAB
    counts = plain_counts(n, length)
    followers = defaultdict(dict)
    for gram, count in counts.items():
        followers[gram[:-1]][gram[-1]] = count
    if context not in followers:
        return lower
    once, twice = (sum(count == k for count in counts.values()) for k in (1, 2))
    discount = once / (once + 2 * twice) if once and twice else 0.5
    seen = followers[context]
    total = sum(seen.values())
    return max(seen.get(token, 0) - discount, 0) / total + discount * len(seen) / total * lower


@pytest.mark.parametrize("length", [1, 2, 3])
def test_equals_the_plain_model(length: int) -> None:
    model = KneserNey(TOKENS, length, VOCAB)
    text = keyed_generator(1, "ngram").choice(VOCAB, 12)
    want = [
        math.log(plain_prob(tuple(text[max(0, i - length + 1) : i]), text[i], length))
        for i in range(len(text))
    ]
    assert model.log_probs(text).tolist() == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_probabilities_sum_to_one(length: int) -> None:
    model = KneserNey(TOKENS, length, VOCAB)
    for context in ([0, 0, 1], [5, 5, 5], [2, 0, 4]):
        total = sum(math.exp(model.log_probs([*context, token])[-1]) for token in range(VOCAB))
        assert total == pytest.approx(1.0, abs=1e-9)


def test_longer_contexts_help_on_a_text_with_structure() -> None:
    tokens = np.tile([0, 1, 0, 2], 200)
    short, long = (KneserNey(tokens, n, VOCAB).log_probs(tokens[:40]).mean() for n in (1, 3))
    assert long > short + 0.5
