"""Windows over cached prefixes, however they share them, against plain forwards of whole sequences."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orderlens.models.engine.layer_parts import rotary_at, rotate  # noqa: E402
from orderlens.models.files.tokenizer import CharacterTokenizer  # noqa: E402
from orderlens.models.protocol import StateBatch  # noqa: E402
from orderlens.models.small import session as sessions  # noqa: E402
from orderlens.models.small.model import TransformerModel  # noqa: E402
from orderlens.models.small.network import (  # noqa: E402
    Norm,
    Transformer,
    TransformerConfig,
    attention,
)

SHAPES = {
    "tiny-like": TransformerConfig(40, 3, 32, 4, 48, 8, 256),
    "smol-like": TransformerConfig(40, 2, 48, 6, 40, 8, 256, n_kv_heads=2, qk_norm=False, norm_eps=1e-5),
    "full": TransformerConfig(40, 2, 32, 4, 48, 8, 256, attention="full"),
}
SLOTS_AND_STARTS = {
    "one prefix": ([2] * 5, [16] * 5),
    "chains side by side, at their ends": ([0, 1, 2, 3], [24] * 4),
    "chains side by side, in the middle": ([0, 1, 2, 3], [8] * 4),
    "some neighbours": ([1, 2], [24] * 2),
    "chains in another order": ([3, 1, 0], [24] * 3),
    "equal sharing": ([1, 1, 2, 2, 3, 3], [16] * 6),
    "ragged": ([3, 0, 0, 2, 0, 3], [8, 16, 0, 16, 16, 24]),
    "no prefix": ([0, 3, 1], [0] * 3),
}
PREFIXES = np.random.default_rng(1).integers(2, 40, (4, 24))


def build(config: TransformerConfig) -> TransformerModel:
    torch.manual_seed(3)
    network = Transformer(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    return TransformerModel(network, CharacterTokenizer(), name="random", digest="random")


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest) -> TransformerModel:
    return build(SHAPES[request.param])


def states_of(model: TransformerModel, which: str, seed: int) -> StateBatch:
    """Return windows of which some rows are wanted, not in order of their windows."""
    slots, starts = (np.array(values) for values in SLOTS_AND_STARTS[which])
    if model.attention == "full":
        starts = np.zeros_like(starts)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(8 * len(slots))[: 3 * len(slots)]
    return StateBatch(slots, starts, rng.integers(0, 40, (len(slots), 8)), rows // 8, rows % 8)


def check(model: TransformerModel, session: sessions.TransformerSession, states: StateBatch) -> None:
    rows = session.evaluate(states)
    logits = rows.hidden_RD @ rows.unembed_VD.T
    logits[:, model.mask_id] = -torch.inf
    found = torch.log_softmax(logits, 1).numpy()
    for row, (state, offset) in enumerate(zip(states.row_state_R, states.row_offset_R, strict=True)):
        start = states.starts_N[state]
        sequence = np.concatenate([PREFIXES[states.slots_N[state]][:start], states.tokens_NW[state]])
        np.testing.assert_allclose(found[row], model.log_probs(sequence)[start + offset], atol=2e-4)


def test_windows_are_continuations_of_their_prefixes(model: TransformerModel) -> None:
    session = model.open_session()
    session.prefill(list(PREFIXES), [0] * 4)
    for seed in range(2):  # leftovers of one batch must not affect the next
        for which in SLOTS_AND_STARTS:
            check(model, session, states_of(model, which, seed))


def test_a_block_that_was_tried_and_then_decided(model: TransformerModel) -> None:
    session = model.open_session()
    session.prefill([prefix[:16] for prefix in PREFIXES], [0] * 4)
    each = np.arange(4)
    if model.attention == "block-causal":
        session.evaluate(StateBatch(each, np.full(4, 16), np.ones((4, 8), np.int64), each, each))
        session.extend(each, PREFIXES[:, 16:])
    check(model, session, states_of(model, "chains side by side, at their ends", 7))
    check(model, session, states_of(model, "chains side by side, in the middle", 8))


def test_batches_are_cut_and_found_again(model: TransformerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sessions.WINDOWS_PER_FORWARD, "cpu", 1)  # four windows of 8 per forward
    monkeypatch.setitem(sessions.RARE_STARTS, "cpu", 3)
    session = model.open_session()
    session.prefill(list(PREFIXES), [0] * 4)
    for which in ("one prefix", "ragged", "equal sharing"):
        check(model, session, states_of(model, which, 5))


def test_the_norm_is_torchs() -> None:
    norm, x = Norm(24, eps=1e-5), torch.randn(3, 5, 24)
    torch.nn.init.normal_(norm.weight)
    with torch.inference_mode():
        torch.testing.assert_close(norm(x), torch.nn.RMSNorm.forward(norm, x), rtol=1e-5, atol=1e-6)
        strided = x.transpose(0, 1)
        torch.testing.assert_close(
            norm(strided), torch.nn.RMSNorm.forward(norm, strided), rtol=1e-5, atol=1e-6
        )
        norm, half = norm.bfloat16(), x.bfloat16()
        assert torch.equal(norm(half), torch.nn.RMSNorm.forward(norm, half))


@pytest.mark.parametrize("qk_norm", [True, False])
def test_inference_and_training_agree(qk_norm: bool) -> None:
    """The matrices are large enough to be packed; heads come in groups, and every weight differs."""
    config = TransformerConfig(40, 2, 96, 6, 352, 8, 64, n_kv_heads=2, qk_norm=qk_norm)
    torch.manual_seed(0)
    network, tokens = Transformer(config), torch.randint(0, 40, (2, 8))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.1)

    def run() -> torch.Tensor:
        return network(tokens, torch.arange(8)[None], lambda _, q, k, v: attention(q, k, v))

    trained = run()
    trained.sum().backward()
    with torch.inference_mode():
        torch.testing.assert_close(run(), trained.detach(), rtol=1e-4, atol=1e-4)
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("width", [8, 12])
def test_rotation_is_that_of_complex_numbers(width: int) -> None:
    x = torch.randn(2, 3, 5, width)
    cos, sin = rotary_at(torch.arange(10).view(2, 5), 8, 100.0)
    turned = torch.complex(x[..., :4], x[..., 4:8]) * torch.complex(cos, sin)
    expected = torch.cat((turned.real, turned.imag, x[..., 8:]), dim=-1)
    torch.testing.assert_close(rotate(x, cos, sin), expected)


def test_weights_are_laid_out_once_and_stay_the_same() -> None:
    torch.manual_seed(0)
    network = Transformer(SHAPES["tiny-like"])
    before = {name: part.clone() for name, part in network.state_dict().items()}
    model = TransformerModel(network, CharacterTokenizer(), name="random", digest="random")
    places = {name: part.data_ptr() for name, part in network.state_dict().items()}
    assert not network.get_parameter("layers.0.ffn.down.weight").is_contiguous()
    assert network.embedding.weight.is_contiguous()
    assert all(torch.equal(part, before[name]) for name, part in network.state_dict().items())
    again = model.with_block_size(4).network.state_dict()
    assert {name: part.data_ptr() for name, part in again.items()} == places
