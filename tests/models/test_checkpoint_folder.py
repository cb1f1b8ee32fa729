"""Checkpoint folders, the tokenizer in them, and the causal evaluator on top."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from orderlens.errors import ModelLoadError, UnknownNameError, UserInputError  # noqa: E402
from orderlens.models.bpe import BpeTokenizer  # noqa: E402
from orderlens.models.bundled import bundled_folder, is_model_folder, load_folder, save_folder  # noqa: E402
from orderlens.models.tiny_ar import CausalEvaluator, causal_attend, load_tiny_evaluator  # noqa: E402
from orderlens.models.transformer import Transformer, TransformerConfig  # noqa: E402
from orderlens.training.loop import initial_model  # noqa: E402
from orderlens.training.vocabulary import EOS_ID, MASK_ID, SPECIAL_TOKENS  # noqa: E402

TOKENIZER = BpeTokenizer.from_file(bundled_folder("tiny") / "tokenizer.json")


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
    loaded = load_folder(folder)
    assert is_model_folder(folder)
    assert not is_model_folder(folder.parent)
    assert loaded.config == small_network().config
    for name, tensor in small_network().state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], tensor)
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    assert json.loads((folder / "config.json").read_text())["notes"] == {"steps": 3}


def test_the_digest_follows_the_weights(folder: Path, tmp_path: Path) -> None:
    save_folder(tmp_path / "other", initial_model(small_network().config, 9), TOKENIZER, int8=False)
    assert load_folder(folder).digest == load_folder(folder).digest
    assert load_folder(folder).digest != load_folder(tmp_path / "other").digest


def test_broken_folders_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "width": 32}))
    with pytest.raises(ModelLoadError, match=r"do not fit config\.json"):
        load_folder(folder)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(ModelLoadError, match="model_type is 'bert'"):
        load_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not JSON"):
        load_folder(folder)
    with pytest.raises(UnknownNameError, match="tiny, tiny-ar"):
        bundled_folder("huge")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_text_survives_the_bundled_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.byte_count(ids) == len(text.encode())
    assert not set(ids) & set(range(len(SPECIAL_TOKENS)))


def test_special_ids_and_single_digits() -> None:
    assert [TOKENIZER.token_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
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
    network = load_folder(folder).network
    for (prompt, text), values in zip(pairs, got, strict=True):
        assert values == pytest.approx(slow_logprobs(network, encode(prompt), encode(text)), abs=1e-4)
    assert len(got[2]) == 0


def test_a_token_across_the_boundary_belongs_to_the_continuation(folder: Path) -> None:
    evaluator = load_tiny_evaluator(str(folder))
    whole = TOKENIZER.encode("The water")
    assert len(whole) == 2
    (values,) = evaluator.token_logprobs([("The wa", "ter")])
    assert values == pytest.approx(slow_logprobs(load_folder(folder).network, whole[:1], whole[1:]), abs=1e-4)


def test_too_long_texts_and_wrong_models_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="longer than"):
        load_tiny_evaluator(str(folder)).id_logprobs([([5] * 40, [6] * 40)])
    save_folder(tmp_path / "b", small_network("block-causal"), TOKENIZER)
    with pytest.raises(ModelLoadError, match="must be causal"):
        CausalEvaluator(load_folder(tmp_path / "b"), "b")


def test_scores_of_no_pairs_are_no_scores(folder: Path) -> None:
    assert load_tiny_evaluator(str(folder)).token_logprobs([]) == []
    assert isinstance(load_tiny_evaluator(str(folder)).token_logprobs([("a", "b")])[0], np.ndarray)
