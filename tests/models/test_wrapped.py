"""``wrap``: a foreign network scores and generates as the same network does when it is loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import orderlens as ol  # noqa: E402
from orderlens.errors import OrderLensError, UserInputError  # noqa: E402

VOCAB, MASK = 40, 39
SAMPLES = [
    ol.Sample("a", prompt=[1, 2, 3, 4], target=list(range(5, 17))),
    ol.Sample("b", prompt=[7, 8], target=[9, 9, 1, 0, 22, 30, 31]),
]
ORDERS = ["forced-ar", "random", "max-prob", "oracle-min-q", "max-prob+top=3"]


class Masked(torch.nn.Module):
    """A small transformer encoder with random weights."""

    def __init__(self, width: int = 16, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(VOCAB, width)
        self.place = torch.nn.Embedding(128, width)
        layer = torch.nn.TransformerEncoderLayer(width, 2, 32, dropout=dropout, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, VOCAB)
        self.causal = causal

    def forward(self, ids: Any, mask: Any = None) -> Any:
        length = ids.shape[1]
        if self.causal:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.embed(ids) + self.place(torch.arange(length))
        return self.head(self.body(hidden, mask=mask)) * 3


def block_mask(length: int, size: int) -> Any:
    block = torch.arange(length) // size
    return block[None, :] > block[:, None]


def blocks_of(network: Any, size: int) -> Any:
    return lambda ids: network(ids, block_mask(ids.shape[1], size))


def direct(network: Any, canvas: list[int], position: int, token: int, shift: bool = False) -> float:
    """log p of a token by one call of the network and numpy."""
    with torch.no_grad():
        row = network(torch.tensor([canvas]))[0, max(position - shift, 0)].double().numpy()
    row[MASK] = -np.inf
    return float(row[token] - np.log(np.exp(row - row.max()).sum()) - row.max())


@pytest.fixture(scope="module")
def network() -> Masked:
    return Masked().eval()


def test_log_q_is_the_networks_own(network: Masked) -> None:
    model = ol.wrap(network, mask_id=MASK)
    reveals = ol.score(model, SAMPLES, orders=ORDERS).reveals().to_pandas()
    for (sample_id, _), trace in reveals.groupby(["sample_id", "order"]):
        sample = next(s for s in SAMPLES if s.id == sample_id)
        total = -(-len(sample.target) // 32) * 32  # positions up to the end of the last block stay masked
        canvas = [*sample.prompt, *[MASK] * total]
        for _, together in trace.sort_values("step").groupby("forward"):
            for row in together.itertuples():
                assert row.logq == pytest.approx(
                    direct(network, canvas, row.position, row.token_id), abs=2e-5
                )
            for row in together.itertuples():
                canvas[row.position] = row.token_id


def test_block_causal_and_shift(network: Masked) -> None:
    def forward(module: Masked, ids: Any) -> Any:
        return (module(ids, block_mask(ids.shape[1], 4)),)

    model = ol.wrap(network, mask_id=MASK, attention="block-causal", block_size=4, forward=forward)
    run = ol.score(model, SAMPLES[:1], orders=["forced-ar"])
    first = run.reveals().to_pandas().iloc[5]  # position 9 in block 8…11, token 10 at 9 follows 9 at 8
    canvas = [1, 2, 3, 4, 5, 6, 7, 8, 9, MASK, MASK, MASK]
    expected = direct(lambda ids: forward(network, ids)[0], canvas, 9, 10)
    assert (first.position, first.token_id) == (9, 10)
    assert first.logq == pytest.approx(expected, abs=2e-5)

    rolled = ol.wrap(lambda ids: network(ids).roll(-1, 1), mask_id=MASK, shift=True)
    plain = ol.wrap(network, mask_id=MASK)
    tokens = [1, 2, MASK, 4, MASK]
    assert rolled.log_probs(tokens)[1:] == pytest.approx(plain.log_probs(tokens)[1:], abs=1e-6)


def test_answers_of_other_forms_and_a_padded_vocabulary(network: Masked) -> None:
    plain = ol.wrap(network, mask_id=MASK).log_probs([1, MASK, 3])
    for other in (
        lambda ids: SimpleNamespace(logits=network(ids)),
        lambda ids: (network(ids), None),
        lambda ids: {"loss": None, "logits": network(ids)},
        lambda ids: network(ids).double(),
    ):
        assert ol.wrap(other, mask_id=MASK).log_probs([1, MASK, 3]) == pytest.approx(plain, abs=1e-6)
    half = ol.wrap(lambda ids: network(ids).bfloat16(), mask_id=MASK)
    assert half.log_probs([1, MASK, 3])[1, :9] == pytest.approx(plain[1, :9], abs=0.1)

    def padded(ids: Any) -> Any:
        return torch.nn.functional.pad(network(ids), (0, 24), value=50.0)

    model = ol.wrap(padded, mask_id=MASK, vocab_size=VOCAB)
    assert model.log_probs([1, MASK, 3]) == pytest.approx(plain, abs=1e-6)
    run = ol.generate(model, [ol.Sample("a", prompt=[1, 2])], orders=["max-prob"], max_new_tokens=8)
    assert max(run.reveals().to_pandas().token_id) < MASK


def test_runs_are_kept_for_modules_and_refused_for_functions(network: Masked, tmp_path: Any) -> None:
    model = ol.wrap(network, mask_id=MASK)
    ol.score(model, SAMPLES, orders=["forced-ar"], out=tmp_path / "run")
    again = ol.score(ol.wrap(network, mask_id=MASK), SAMPLES, orders=["forced-ar"], out=tmp_path / "run")
    assert len(again.samples().to_pandas()) == 2
    other = Masked()
    with torch.no_grad():
        other.head.bias += torch.randn(VOCAB)
    with pytest.raises(OrderLensError):
        ol.score(ol.wrap(other.eval(), mask_id=MASK), SAMPLES, orders=["forced-ar"], out=tmp_path / "run")
    trained = ol.wrap(other, mask_id=MASK)
    before = trained.digest
    with torch.no_grad():
        other.head.bias += 1.0
    assert trained.digest != before, "a network that is trained further is another model"
    function = ol.wrap(lambda ids: network(ids), mask_id=MASK)
    with pytest.raises(OrderLensError, match="memory"):
        ol.score(function, SAMPLES, orders=["forced-ar"], out=tmp_path / "other")


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda n: Masked(causal=True).eval(), {}, "this network is causal"),
        (lambda n: Masked(dropout=0.3).train(), {}, r"network\.eval\(\)"),
        (lambda n: lambda ids: n(ids).roll(-1, 1), {}, "did you mean shift=True"),
        (lambda n: n, {"attention": "block-causal", "block_size": 4}, "not block-causal"),
        (lambda n: blocks_of(n, 4), {}, "did you mean attention='block-causal', block_size=4"),
        (lambda n: blocks_of(n, 32), {}, "did you mean attention='block-causal', block_size=32"),
        (lambda n: blocks_of(n, 4), {"attention": "block-causal", "block_size": 8}, "block_size=4"),
        (lambda n: lambda ids: torch.nn.functional.pad(n(ids), (0, 9)), {}, "vocab_size=N"),
        (lambda n: lambda ids: n(ids) * torch.nan, {}, "not finite"),
        (lambda n: lambda ids: n(ids) + n(ids).mean(0, keepdim=True), {}, "other sequences of its batch"),
    ],
)
def test_the_probe_names_what_is_wrong(network: Masked, make: Any, options: Any, words: str) -> None:
    model = ol.wrap(make(network), mask_id=MASK, **options)
    with pytest.raises(UserInputError, match=words):
        ol.score(model, SAMPLES, orders=["forced-ar"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask_id": -1}, "mask_id"),
        ({"mask_id": VOCAB}, "up to 40 .*: check mask_id"),
        ({"mask_id": MASK, "attention": "sideways"}, "'full' or 'block-causal'"),
        ({"mask_id": MASK, "attention": "block-causal"}, "needs block_size"),
        ({"mask_id": MASK, "block_size": 0}, "block_size=0 must be at least 1"),
        ({"mask_id": MASK, "eos": 400}, "outside the vocabulary"),
        ({"mask_id": MASK, "forward": lambda network, ids: ids}, r"logits \[N, L, V\]"),
    ],
)
def test_bad_declarations_are_refused(network: Masked, options: Any, words: str) -> None:
    with pytest.raises(UserInputError, match=words):
        ol.wrap(network, **options)


@pytest.mark.parametrize("failure", [IndexError, RuntimeError])
def test_networks_with_few_positions(network: Masked, failure: type[Exception]) -> None:
    def short(ids: Any) -> Any:
        if ids.shape[1] > 16:
            raise failure("index out of range in self")
        return network(ids)

    samples = [ol.Sample("a", prompt=[1, 2, 3, 4], target=[5, 6, 7, 8, 9, 10])]
    run = ol.score(ol.wrap(short, mask_id=MASK, block_size=8), samples, orders=["forced-ar"])
    assert run.samples().to_pandas()["n"].tolist() == [6]
    with pytest.raises(UserInputError, match="smaller block_size"):
        ol.score(ol.wrap(short, mask_id=MASK), samples, orders=["forced-ar"])


def test_tokenizers_of_other_libraries(network: Masked) -> None:
    class Letters:
        eos_token_id = 2

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [38] * add_special_tokens + [ord(letter) - 97 for letter in text]

        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
            return "".join(chr(97 + index) for index in ids)

        def __len__(self) -> int:
            return 30

    model = ol.wrap(network, Letters(), mask_id=MASK)
    assert model.tokenizer.encode("abc") == [0, 1, 2]
    assert model.eos_ids == {2}
    run = ol.score(model, [ol.Sample("x", prompt="ab", target="cdefg")], orders=["random:2"])
    assert run.samples().to_pandas()["n"].tolist() == [5]


def test_without_a_tokenizer_no_text_is_stored_and_no_bytes_are_counted(network: Masked) -> None:
    model = ol.wrap(network, mask_id=MASK)
    run = ol.score(model, SAMPLES, orders=["forced-ar"])
    assert run.outputs().to_pandas()["text"].isna().all()
    assert ol.likelihood(model, SAMPLES).to_pandas()["bits_per_byte"].isna().all()
    assert ol.Study(run).table("policies").to_pandas()["bits_per_byte"].isna().all()
    drawn = ol.generate(model, [ol.Sample("a", prompt=[1, 2])], orders=["max-prob"], max_new_tokens=4)
    assert drawn.outputs().to_pandas()["text"].isna().all()


def test_the_hidden_markov_model_wrapped_is_coherent() -> None:
    hmm = ol.load_model("hmm")

    def logits(ids: Any) -> Any:
        return torch.from_numpy(np.stack([hmm.log_probs(row) for row in ids.tolist()])).clamp_min(-1e4)

    model = ol.wrap(
        logits,
        hmm.tokenizer,
        mask_id=hmm.mask_id,
        attention=hmm.attention,
        block_size=hmm.block_size,
        check=False,
    )
    sample = ol.Sample("text", prompt="The ferry ", target="leaves the harbour at nine")
    orders = ["forced-ar", "reverse-ar", "random"]
    ours = ol.score(hmm, [sample], orders=orders).samples().to_pandas().log_prob
    theirs = ol.score(model, [sample], orders=orders).samples().to_pandas().log_prob
    assert theirs.to_numpy() == pytest.approx(ours.to_numpy(), abs=1e-4)


@pytest.mark.parametrize("token", [3, 35])
def test_a_target_that_is_excluded_or_padding_is_refused(network: Masked, token: int) -> None:
    model = ol.wrap(network, mask_id=MASK, excluded=[3], vocab_size=35)
    with pytest.raises(UserInputError, match=f"target token id {token} is one that no order may reveal"):
        ol.score(model, [ol.Sample("a", [1, token], [5, token])], orders=["forced-ar"])
    assert len(ol.score(model, [ol.Sample("a", [1, token], [5, 6])], orders=["forced-ar"]).reveals()) == 2
