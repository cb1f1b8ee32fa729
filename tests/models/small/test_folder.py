"""Checkpoint folders, the tokenizer in them, and the causal evaluator on top."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from orderlens.errors import ModelLoadError, UnknownNameError, UserInputError  # noqa: E402
from orderlens.models.evaluators.small import SmallEvaluator, load_tiny_evaluator  # noqa: E402
from orderlens.models.files.tokenizer import FastTokenizer  # noqa: E402
from orderlens.models.small import folder as folder_module  # noqa: E402
from orderlens.models.small.folder import bundled_folder, read_folder, save_folder  # noqa: E402
from orderlens.models.small.network import (  # noqa: E402
    Transformer,
    TransformerConfig,
    causal_attend,
    meta_network,
)
from orderlens.training.data import EOS_ID, MASK_ID, SPECIAL_TOKENS  # noqa: E402
from orderlens.training.loop import initial_model  # noqa: E402

TOKENIZER = FastTokenizer.from_file(bundled_folder("tiny") / "tokenizer.json")


def small_network(attention: str = "causal") -> Transformer:
    config = TransformerConfig(
        n_layers=2, width=16, n_heads=2, ffn_width=24, max_positions=64, attention=attention
    )
    network = initial_model(config, 0)
    for name, parameter in network.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    return network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_folder(tmp_path / "m", small_network(), TOKENIZER, int8=False, notes={"steps": 3})
    return tmp_path / "m"


def test_a_folder_loads_as_it_was_saved(folder: Path) -> None:
    loaded = read_folder(folder)
    assert loaded.config == small_network().config
    for name, tensor in small_network().state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], tensor)
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    assert json.loads((folder / "config.json").read_text())["notes"] == {"steps": 3}


def test_the_digest_follows_the_weights(folder: Path, tmp_path: Path) -> None:
    save_folder(tmp_path / "other", initial_model(small_network().config, 9), TOKENIZER, int8=False)
    assert read_folder(folder).digest == read_folder(folder).digest
    assert read_folder(folder).digest != read_folder(tmp_path / "other").digest


def test_broken_folders_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "width": 32}))
    with pytest.raises(ModelLoadError, match=r"do not fit config\.json"):
        read_folder(folder)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(ModelLoadError, match="model_type is 'bert'"):
        read_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        read_folder(folder)
    with pytest.raises(UnknownNameError, match="tiny, tiny-ar"):
        bundled_folder("huge")


BAD_VALUES = {
    "attention": [("diagonal", "is not supported"), (3, "is not supported")],
    "width": [
        (-16, "at least 1"),
        ("16", "must be an integer"),
        (10**30, "at most"),
        (15, "multiple of n_heads"),
    ],
    "n_heads": [(0, "at least 1"), (16, "must be even"), (True, "must be an integer")],
    "n_kv_heads": [(-1, "at least 0"), (3, "multiple of n_kv_heads")],
    "n_layers": [(0, "at least 1"), (10**9, "at most"), (2.0, "must be an integer")],
    "vocab_size": [(1, "at least 2"), (10**12, "at most")],
    "block_size": [(0, "at least 1"), (65, "at most 64")],
    "max_positions": [(10**15, "at most")],
    "mask_id": [(8192, "outside the vocabulary"), (-1, "outside"), ("0", "token id"), (1, "must differ")],
    "eos_id": [(9999, "outside the vocabulary")],
    "norm_eps": [
        (0, "positive"),
        ("small", "positive"),
        (float("nan"), "positive"),
        (float("inf"), "positive"),
    ],
    "rope_theta": [(-1.0, "positive")],
    "qk_norm": [(1, "true or false")],
}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [(key, *case) for key, cases in BAD_VALUES.items() for case in cases],
)
def test_a_value_that_cannot_be_is_refused_by_name(
    folder: Path, key: str, value: object, message: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ModelLoadError, match=message) as caught:
        read_folder(folder)
    assert str(folder / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shapes_are_compared_before_weights_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that would fill the memory many times over meet the file's header first."""
    monkeypatch.setattr(folder_module, "load_weights", lambda _: pytest.fail("weights were read"))
    config = json.loads((folder / "config.json").read_text())
    huge = {**config, "width": 2**20, "ffn_width": 2**22, "n_layers": 4}
    (folder / "config.json").write_text(json.dumps(huge))
    with pytest.raises(ModelLoadError, match=r"do not fit config\.json, first '.*': file .*, config"):
        read_folder(folder)


def test_strange_tensor_types_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    state["final_norm.weight"] = state["final_norm.weight"].to(torch.int32)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match="stored as I32"):
        read_folder(folder)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_text_survives_the_bundled_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.byte_count(ids) == len(text.encode())
    assert not set(ids) & set(range(len(SPECIAL_TOKENS)))


def test_special_ids_and_single_digits() -> None:
    assert [TOKENIZER.id_of(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert (MASK_ID, EOS_ID, TOKENIZER.vocab_size) == (0, 1, 8192)
    assert len(TOKENIZER.encode("2024")) == 4
    assert len(TOKENIZER.encode(" 2024")) == 4
    assert TOKENIZER.decode([1]) == "<|eos|>"
    assert len(TOKENIZER.encode("<|eos|>")) > 1


def slow_logprobs(network: Transformer, prompt: list[int], text: list[int]) -> list[float]:
    """One forward per token."""
    values, seen = [], [network.config.eos_id, *prompt]
    with torch.no_grad():
        for token in text:
            tokens = torch.tensor([seen])
            state = network(tokens, torch.arange(len(seen))[None], causal_attend)[0, -1]
            logits = network.embedding.weight @ state
            logits[network.config.mask_id] = -torch.inf
            values.append(float(logits.log_softmax(-1)[token]))
            seen.append(token)
    return values


def test_batched_scores_equal_one_forward_per_token(folder: Path) -> None:
    evaluator = load_tiny_evaluator(str(folder))
    evaluator._batch_tokens = 30
    encode = TOKENIZER.encode
    pairs = [
        ("The old harbour", " was quiet."),
        ("", "Rain fell."),
        ("Ann:", ""),
        ("On Monday the council", " met"),
    ]
    got = evaluator.token_logprobs(pairs)
    network = read_folder(folder).network
    for (prompt, text), values in zip(pairs, got, strict=True):
        assert values == pytest.approx(slow_logprobs(network, encode(prompt), encode(text)), abs=1e-4)
    assert len(got[2]) == 0


def test_a_token_across_the_boundary_belongs_to_the_continuation(folder: Path) -> None:
    evaluator = load_tiny_evaluator(str(folder))
    whole = TOKENIZER.encode("The water")
    assert len(whole) == 2
    (values,) = evaluator.token_logprobs([("The wa", "ter")])
    assert values == pytest.approx(slow_logprobs(read_folder(folder).network, whole[:1], whole[1:]), abs=1e-4)


def test_too_long_texts_and_wrong_models_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="longer than"):
        load_tiny_evaluator(str(folder)).token_logprobs([("The water " * 20, "The water " * 20)])
    save_folder(tmp_path / "b", small_network("block-causal"), TOKENIZER)
    with pytest.raises(ModelLoadError, match="must be causal"):
        SmallEvaluator(read_folder(tmp_path / "b"), "b")


def test_scores_of_no_pairs_are_no_scores(folder: Path) -> None:
    assert load_tiny_evaluator(str(folder)).token_logprobs([]) == []
    assert isinstance(load_tiny_evaluator(str(folder)).token_logprobs([("a", "b")])[0], np.ndarray)


def test_a_network_without_weights_has_the_same_names_and_shapes() -> None:
    config = small_network("causal").config
    shapes = {name: part.shape for name, part in Transformer(config).state_dict().items()}
    bare = meta_network(config).state_dict()
    assert {name: part.shape for name, part in bare.items()} == shapes
    assert all(part.is_meta for part in bare.values())
