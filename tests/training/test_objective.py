"""The one-pass losses against slow, obvious computations, one block and one copy at a time."""

import math
import warnings

import pytest

torch = pytest.importorskip("torch")

from orderlens.models.small.network import (  # noqa: E402
    Transformer,
    TransformerConfig,
    block_causal_mask,
)
from orderlens.training.objective import (  # noqa: E402
    AnyOrderLoss,
    CausalLoss,
    PermutationLoss,
    block_causal_rule,
    dense_attend,
    dense_mask,
    full_rule,
    pair_weights,
    sample_masks,
    sample_permutations,
)

LENGTH, BLOCK = 12, 4
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def small_model(attention: str) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=23, n_layers=3, width=16, n_heads=2, ffn_width=24, block_size=BLOCK, attention=attention
    )
    model = Transformer(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def brute_force(model: Transformer, tokens, first, weight) -> float:
    """One forward per (sequence, block, copy) over the clean prefix and the partly hidden block."""
    total = 0.0
    full = model.config.attention == "full"
    group = LENGTH if full else BLOCK
    for row, sequence in enumerate(tokens):
        for start in range(0, LENGTH, group):
            end = start + group
            for hidden in (first[row, start:end], ~first[row, start:end]):
                seen = sequence[:end].clone()
                seen[start:end][hidden] = model.config.mask_id
                mask = torch.ones(end, end, dtype=torch.bool) if full else block_causal_mask(end, BLOCK)
                states = model(seen[None], torch.arange(end)[None], dense_attend(mask))[0]
                logp = (states @ model.embedding.weight.T).log_softmax(-1)
                for place in torch.nonzero(hidden).flatten() + start:
                    total -= float(weight[row, place] * logp[place, sequence[place]])
    return total


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_one_pass_equals_one_forward_per_block_and_copy(attention: str) -> None:
    model = small_model(attention)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 23, (2, LENGTH), generator=generator)
    masks = sample_masks(2, LENGTH, BLOCK if attention == "block-causal" else LENGTH, generator)
    loss = AnyOrderLoss(model, LENGTH, CPU, "dense")(tokens, masks.first, masks.weight.double())
    assert float(loss) == pytest.approx(brute_force(model, tokens, masks.first, masks.weight), rel=1e-6)


def test_causal_row_speaks_about_its_own_position() -> None:
    model = small_model("causal")
    tokens = torch.randint(1, 23, (1, LENGTH), generator=torch.Generator().manual_seed(4))
    want = []
    for end in range(LENGTH):
        seen = torch.cat((torch.tensor([model.config.eos_id]), tokens[0, :end]))
        causal = dense_attend(torch.ones(len(seen), len(seen)).tril().bool())
        state = model(seen[None], torch.arange(len(seen))[None], causal)[0, -1]
        want.append(-float((state @ model.embedding.weight.T).log_softmax(-1)[tokens[0, end]]))
    assert float(CausalLoss(model)(tokens)) == pytest.approx(sum(want) / LENGTH, rel=1e-6)


def test_hidden_counts_are_uniform_and_every_token_is_hidden_once() -> None:
    masks = sample_masks(4000, 8, 4, torch.Generator().manual_seed(0))
    counts = torch.bincount(masks.first.view(-1, 4).sum(-1), minlength=5).double() / 8000
    assert torch.allclose(counts, torch.full((5,), 0.2, dtype=torch.float64), atol=0.02)
    shares = masks.first.float().mean(0)
    assert torch.allclose(shares, torch.full((8,), 0.5), atol=0.03)


def test_weights_average_each_copy_over_what_it_hides() -> None:
    first = torch.tensor([[[True, False, False, False], [True, True, True, True]]])
    weight = pair_weights(first, first.sum(-1, keepdim=True))
    copies = 2 * 2 * 4 / 5
    assert torch.allclose(weight[0, 0] * copies, torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3]))
    assert torch.allclose(weight[0, 1] * copies, torch.full((4,), 0.25))


def test_loss_of_a_uniform_model_is_log_vocabulary() -> None:
    model = small_model("block-causal")
    torch.nn.init.zeros_(model.final_norm.weight)
    losses = []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        masks = sample_masks(8, LENGTH, BLOCK, generator)
        tokens = torch.randint(1, 23, (8, LENGTH), generator=generator)
        losses.append(float(AnyOrderLoss(model, LENGTH, CPU, "dense")(tokens, masks.first, masks.weight)))
    assert sum(losses) / len(losses) == pytest.approx(math.log(23), rel=0.03)


def test_block_causal_rule_written_out() -> None:
    seen = dense_mask(block_causal_rule(4, 2), 12)
    rows = ["".join("x" if cell else "." for cell in row) for row in seen.tolist()]
    assert rows == [
        "xx..........", "xx..........", "..xx....xx..", "..xx....xx..",
        "....xx......", "....xx......", "......xxxx..", "......xxxx..",
        "........xx..", "........xx..", "........xxxx", "........xxxx",
    ]  # fmt: skip


def test_full_rule_keeps_streams_apart() -> None:
    seen = dense_mask(full_rule(3), 6)
    assert torch.equal(seen, torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).bool())


@pytest.mark.parametrize("rule", [block_causal_rule(32, 8), full_rule(48)])
def test_flex_attention_gives_what_the_dense_mask_gives(rule) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 96, 16, generator=generator).unbind(0)
    block_mask = flex.create_block_mask(rule, None, None, 96, 96, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # eager FlexAttention is slow, and says so once
        got = flex.flex_attention(q, k, v, block_mask=block_mask)
    assert torch.allclose(got, dense_attend(dense_mask(rule, 96))(0, q, k, v), atol=1e-5)


def one_query(model: Transformer, tokens, rank, place) -> float:
    """log p of one token: what was revealed before it in that order, and one query at the end."""
    given, own = (rank < 0).nonzero().flatten(), int(rank[place])
    earlier = sorted((int(i) for i in (rank >= 0).nonzero() if rank[i] < own), key=lambda i: int(rank[i]))
    places = torch.tensor([*given.tolist(), *earlier, place])
    line = torch.cat((tokens[places[:-1]], torch.tensor([model.config.mask_id])))
    visible = torch.ones(len(line), len(line)).tril().bool()
    visible[: len(given), : len(given)] = True
    states = model(line[None], places[None], dense_attend(visible))[0]
    return float((states[-1] @ model.embedding.weight.T).log_softmax(-1)[tokens[place]])


def test_permutation_loss_equals_one_query_at_a_time() -> None:
    model = small_model("permutation")
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, 23, (3, LENGTH), generator=generator)
    order = sample_permutations(3, LENGTH, generator)
    want = -sum(
        float(order.weight[row, place]) * one_query(model, tokens[row], order.rank[row], place)
        for row in range(3)
        for place in range(LENGTH)
        if order.rank[row, place] >= 0
    )
    assert float(PermutationLoss(model)(tokens, order.rank, order.weight)) == pytest.approx(want, rel=1e-6)


def test_permutations_count_every_number_of_visible_tokens_alike() -> None:
    length, draws = 5, 20_000
    order = sample_permutations(draws, length, torch.Generator().manual_seed(0))
    given = (order.rank < 0).sum(1, keepdim=True)
    visible = (given + order.rank)[order.rank >= 0]
    mass = torch.zeros(length).index_add(0, visible, order.weight[order.rank >= 0])
    assert mass.tolist() == pytest.approx([1 / length] * length, rel=0.05)
    assert sorted(set(given.flatten().tolist())) == list(range(length))
