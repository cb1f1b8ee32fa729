"""Who sees whom while training, written out pair by pair."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from orderlens.models.small.network import attention, causal_attend  # noqa: E402
from orderlens.training.objective import (  # noqa: E402
    block_causal_rule,
    dense_attend,
    dense_mask,
    permutation_mask,
    stream_attend,
)

RANKS = [[-1, -1, 2, 0, 1], [0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [-1, -1, -1, -1, 0]]


@pytest.mark.parametrize("rank", RANKS)
def test_permutation_mask_pair_by_pair(rank: list[int]) -> None:
    n = len(rank)
    found = permutation_mask(torch.tensor([rank]))
    assert found.shape == (1, 1, 2 * n, 2 * n)
    for query, key in itertools.product(range(2 * n), repeat=2):
        a, b = query % n, key % n
        asks, told = query < n, key < n
        if told:
            want = asks and a == b  # only the query itself sees a query
        elif asks:
            want = rank[b] < rank[a]
        else:
            want = rank[b] <= rank[a]
        assert bool(found[0, 0, query, key]) is want, (query, key)


def test_every_window_has_its_own_permutation() -> None:
    together = permutation_mask(torch.tensor(RANKS))
    for row, rank in enumerate(RANKS):
        assert torch.equal(together[row], permutation_mask(torch.tensor([rank]))[0])


@pytest.mark.parametrize("noisy", [1, 2])
def test_block_causal_streams_pair_by_pair(noisy: int) -> None:
    length, block = 6, 2
    found = dense_mask(block_causal_rule(length, block, noisy), (noisy + 1) * length)
    for query, key in itertools.product(range((noisy + 1) * length), repeat=2):
        (qs, qp), (ks, kp) = divmod(query, length), divmod(key, length)
        earlier, same = kp // block < qp // block, kp // block == qp // block
        want = (ks == noisy and (earlier or (qs == noisy and same))) or (qs == ks and same)
        assert bool(found[query, key]) is want, (query, key)


@pytest.fixture(scope="module")
def heads() -> tuple[torch.Tensor, ...]:
    """Queries of four heads over keys and values of two, [1, H, T, D]."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, n, 6, 4, generator=generator, dtype=torch.float64) for n in (4, 2, 2))


def slow(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed) -> torch.Tensor:
    """One query at a time over the keys that it may see; head h reads the keys of head h // 2."""
    out = torch.zeros_like(q)
    for head, place in itertools.product(range(q.shape[1]), range(q.shape[2])):
        seen = [key for key in range(k.shape[2]) if allowed(place, key)]
        weights = torch.softmax(k[0, head // 2, seen] @ q[0, head, place] / 2.0, 0)  # √4
        out[0, head, place] = weights @ v[0, head // 2, seen]
    return out


def test_attention_left_to_right(heads) -> None:
    want = slow(*heads, lambda query, key: key <= query)
    assert torch.allclose(causal_attend(0, *heads), want, atol=1e-12)
    assert torch.allclose(dense_attend(torch.ones(6, 6).tril().bool())(3, *heads), want, atol=1e-12)
    assert torch.allclose(attention(*heads, torch.ones(6, 6).tril().bool()), want, atol=1e-12)


def test_a_rule_runs_as_it_reads(heads) -> None:
    def rule(_batch, _head, query, key):
        return (query + key) % 2 == 0

    attend = stream_attend(rule, 6, torch.device("cpu"), "dense")
    want = slow(*heads, lambda query, key: (query + key) % 2 == 0)
    assert torch.allclose(attend(0, *heads), want, atol=1e-12)
