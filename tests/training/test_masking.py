"""Masks and their weights: every estimator against a mean over all cases."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from orderlens.training.objective import (  # noqa: E402
    pair_weights,
    sample_masks,
    sample_permutations,
    step_generator,
)

CPU = torch.device("cpu")


def loss_of(hidden: int) -> float:
    """Any loss that depends on how many tokens of the block are hidden."""
    return 0.3 + hidden**1.5


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_weighted_sum_is_the_mean_over_numbers_of_hidden_tokens(n: int) -> None:
    """The size of the first copy is uniform on 0…n; a block's expected sum is the mean over 1…n hidden."""
    total = 0.0
    for size in range(n + 1):
        first = (torch.arange(n) < size).view(1, 1, n)
        weight = pair_weights(first, torch.tensor([[[size]]])).flatten().tolist()
        hidden = [size if here else n - size for here in first.flatten().tolist()]
        total += sum(w * loss_of(h) for w, h in zip(weight, hidden, strict=True)) / (n + 1)
    assert total == pytest.approx(sum(loss_of(h) for h in range(1, n + 1)) / n)


def test_batch_and_blocks_share_the_weight() -> None:
    one = sample_masks(1, 4, 4, torch.Generator().manual_seed(0))
    first = one.first.view(1, 1, 4).expand(3, 5, 4)
    size = first.sum(-1, keepdim=True)
    assert torch.allclose(pair_weights(first, size) * 15, one.weight.view(1, 1, 4).expand(3, 5, 4))


def test_every_set_of_one_size_is_as_likely_as_any_other() -> None:
    first = sample_masks(6000, 4, 4, torch.Generator().manual_seed(1)).first
    counts = dict.fromkeys(itertools.product((False, True), repeat=4), 0)
    for row in first.tolist():
        counts[tuple(row)] += 1
    for chosen, count in counts.items():
        alike = {0: 1, 1: 4, 2: 6, 3: 4, 4: 1}[sum(chosen)]
        assert count / 6000 == pytest.approx(1 / 5 / alike, abs=0.025), chosen


def test_blocks_draw_their_sizes_apart() -> None:
    first = sample_masks(3000, 8, 4, torch.Generator().manual_seed(2)).first.view(-1, 2, 4).sum(-1).float()
    assert abs(float(torch.corrcoef(first.T)[0, 1])) < 0.06


def test_permutations_give_each_place_every_rank_alike() -> None:
    drawn = sample_permutations(4000, 3, torch.Generator().manual_seed(5))
    shown = drawn.rank
    for row in shown[:200].tolist():
        predicted = sorted(rank for rank in row if rank >= 0)
        assert predicted == list(range(len(predicted)))
        assert 1 <= len(predicted) <= 3
    sizes = torch.bincount((shown < 0).sum(1), minlength=3) / 4000
    assert torch.allclose(sizes, torch.full((3,), 1 / 3), atol=0.03)
    assert float(drawn.weight[shown < 0].abs().sum()) == 0
    assert torch.allclose((shown == 0).float().mean(0), torch.full((3,), 1 / 3), atol=0.03)


def test_permutation_weights_make_every_number_of_visible_tokens_count_alike() -> None:
    """Over all numbers of given tokens: the sum of weights at v visible tokens is the same for every v."""
    drawn = sample_permutations(6000, 4, torch.Generator().manual_seed(6))
    given = (drawn.rank < 0).sum(1, keepdim=True)
    visible = torch.where(drawn.rank >= 0, drawn.rank + given, -1)
    sums = torch.tensor([float(drawn.weight[visible == v].sum()) for v in range(4)])
    assert torch.allclose(sums, torch.full((4,), 0.25), atol=0.02)


def test_masks_of_a_step_depend_on_seed_and_step_alone() -> None:
    def drawn(seed: int, step: int) -> torch.Tensor:
        return sample_masks(4, 32, 8, step_generator(seed, step, CPU)).first

    torch.manual_seed(0)
    one = drawn(3, 7)
    torch.manual_seed(1)
    assert torch.equal(one, drawn(3, 7))
    assert not torch.equal(one, drawn(3, 8))
    assert not torch.equal(one, drawn(4, 7))
