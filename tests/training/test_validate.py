"""Validation figures against one plain forward per reveal."""

import pytest

torch = pytest.importorskip("torch")

from orderlens.errors import UserInputError  # noqa: E402
from orderlens.models.small.network import (  # noqa: E402
    Transformer,
    TransformerConfig,
    block_causal_mask,
)
from orderlens.training.objective import dense_attend  # noqa: E402
from orderlens.training.validate import any_order_bound, mean_log_prob, reveal_ranks  # noqa: E402

LENGTH, PREFIX, BLOCK = 16, 6, 4


def small_model(attention: str) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=23, n_layers=2, width=16, n_heads=2, ffn_width=24, block_size=BLOCK, attention=attention
    )
    model = Transformer(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.requires_grad_(False)


def slow_log_prob(model: Transformer, tokens, ranks) -> float:
    """Reveal one token at a time, blocks left to right, everything not yet revealed hidden."""
    total, seen = 0.0, torch.where(ranks < 0, tokens, model.config.mask_id)
    block = torch.arange(LENGTH) // BLOCK
    mask = (
        block_causal_mask(LENGTH, BLOCK)
        if model.config.attention == "block-causal"
        else torch.ones(LENGTH, LENGTH).bool()
    )
    own = torch.eye(LENGTH).bool()
    for place in sorted(
        torch.nonzero(ranks >= 0).flatten().tolist(), key=lambda i: (int(block[i]), int(ranks[i]))
    ):
        if model.config.attention == "permutation":
            mask = (seen != model.config.mask_id).expand(LENGTH, LENGTH) | own
        logits = (
            model(seen[None], torch.arange(LENGTH)[None], dense_attend(mask))[0, place]
            @ model.embedding.weight.T
        )
        logits[model.config.mask_id] = -torch.inf
        total += float(logits.log_softmax(-1)[tokens[place]])
        seen[place] = tokens[place]
    return total / (LENGTH - PREFIX)


@pytest.mark.parametrize("attention", ["block-causal", "full", "permutation"])
@pytest.mark.parametrize("order", ["forced-ar", "reverse-ar", "random"])
def test_side_by_side_blocks_equal_one_reveal_at_a_time(attention: str, order: str) -> None:
    model = small_model(attention)
    windows = torch.randint(1, 23, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    ranks = reveal_ranks(3, LENGTH, PREFIX, BLOCK, order, seed=4)
    want = [slow_log_prob(model, tokens, row) for tokens, row in zip(windows, ranks, strict=True)]
    assert mean_log_prob(model, windows, PREFIX, order, seed=4, batch=2).tolist() == pytest.approx(
        want, abs=1e-4
    )


def test_the_bound_is_the_mean_over_random_orders() -> None:
    """E over orders of −log P/n equals E over mask sizes of the mean hidden loss: the any-order identity."""
    model = small_model("block-causal")
    windows = torch.randint(1, 23, (4, LENGTH), generator=torch.Generator().manual_seed(2))
    orders = [float(mean_log_prob(model, windows, 0, "random", seed=seed).mean()) for seed in range(60)]
    assert any_order_bound(model, windows, draws=400) == pytest.approx(-sum(orders) / 60, rel=0.01)


def test_ranks_by_hand() -> None:
    assert reveal_ranks(1, 7, 3, 4, "forced-ar").tolist() == [[-1, -1, -1, 0, 0, 1, 2]]
    assert reveal_ranks(1, 7, 3, 4, "reverse-ar").tolist() == [[-1, -1, -1, 0, 2, 1, 0]]
    with pytest.raises(UserInputError, match="unknown order 'max-prob'"):
        reveal_ranks(1, 7, 3, 4, "max-prob")
