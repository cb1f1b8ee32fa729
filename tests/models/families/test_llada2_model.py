from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_generate, reference_score
from orderlens.decode.score import score_batch
from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.abilities import chat_template
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.engine import device as fit
from orderlens.models.families.llada2 import ROLES, load_llada2
from orderlens.models.files.roles import TokenRoles, find_roles
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

Make = Callable[..., tuple[Path, dict[str, Any]]]


def test_token_roles_come_from_the_checkpoint(model: DecoderModel) -> None:
    assert model.mask_id == 99
    assert model.eos_ids == {98}
    assert 102 in model.special_ids  # <|role_end|> counts as special although the tokenizer does not flag it
    assert not model.special_ids & {98, 99}
    assert model.vocab_size == 112
    assert model.roles.valid_vocab == 103
    assert (model.block_size, model.attention, model.anchor) == (32, "block-causal", "zero")
    assert model.max_positions == 512


def test_text_goes_both_ways(model: DecoderModel) -> None:
    ids = model.tokenizer.encode("Hi <|role_end|>")
    assert ids[-1] == 102
    assert model.tokenizer.decode(ids) == "Hi <|role_end|>"
    chat = chat_template(model)
    assert chat is not None
    prompt = model.tokenizer.encode(chat.render([{"role": "user", "content": "Hi"}]))
    assert model.tokenizer.decode(prompt) == "<role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>"


def test_load_model_finds_the_family(checkpoint: Any) -> None:
    model = load_model(str(checkpoint[0]), device="cpu", dtype="float32")
    assert isinstance(model, DecoderModel)
    assert model.name == str(checkpoint[0])


def test_without_a_tokenizer_ids_still_work(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint(tokenizer=False, mask_token_id=110, eos_token_id=[98, 97])
    model = load_llada2(folder, device="cpu")
    assert (model.mask_id, model.eos_ids, model.roles.valid_vocab) == (110, {97, 98}, 112)
    assert model.tokenizer.decode([1, 2]) == "1 2"
    with pytest.raises(UserInputError, match=r"this model has no tokenizer"):
        model.tokenizer.encode("text")
    assert chat_template(model) is None
    assert np.isneginf(model.log_probs([1, 2, 110])[:, 110]).all()


def test_ids_outside_the_vocabulary_are_refused(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint(tokenizer=False)
    with pytest.raises(ModelLoadError, match="mask id 156895 is outside the vocabulary of 112"):
        load_llada2(folder, device="cpu")
    assert load_llada2(folder, device="cpu", mask_token_id=111, eos_token_id=[0]).mask_id == 111
    with pytest.raises(ModelLoadError, match="EOS id 500"):
        load_llada2(folder, device="cpu", mask_token_id=111, eos_token_id=[500])


def test_published_ids_are_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')  # may be the end of a turn

    def roles(vocab_size: int = 157184, **values: Any) -> TokenRoles:
        return find_roles(tmp_path, values, vocab_size, None, ROLES)

    assert (roles(pad_token_id=126081).mask_id, roles(pad_token_id=126081).eos_ids) == (156895, {156892})
    assert roles(eos_token_id=[1, 2]).eos_ids == {1, 2}
    assert roles(112, pad_token_id=5, mask_id=6).eos_ids == {5}


def test_tokenizer_of_another_checkpoint_is_refused(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint(vocab_size=100)
    with pytest.raises(ModelLoadError, match="ids up to 102, but the model's vocabulary has 100"):
        load_llada2(folder, device="cpu")


def test_digest_depends_on_what_matters(checkpoint: Any, make_checkpoint: Make, model: DecoderModel) -> None:
    again = load_llada2(checkpoint[0], device="cpu")
    assert again.digest == model.digest
    assert load_llada2(checkpoint[0], device="cpu", dtype="bfloat16").digest != model.digest
    assert model.with_block_size(16).digest != model.digest
    assert load_llada2(make_checkpoint(seed=1)[0], device="cpu").digest != model.digest


def test_block_size_shares_everything_else(model: DecoderModel) -> None:
    smaller = model.with_block_size(8)
    assert smaller.engine is model.engine
    assert smaller.weights is model.weights
    with pytest.raises(UserInputError, match="block_size=0"):
        model.with_block_size(0)


@pytest.mark.parametrize(("option", "value"), [("device", "abacus"), ("dtype", "int3")])
def test_unknown_device_or_dtype(checkpoint: Any, option: str, value: str) -> None:
    with pytest.raises(UserInputError, match=value):
        load_llada2(checkpoint[0], **{"device": "cpu", option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks the message on machines without CUDA")
def test_cuda_without_cuda(checkpoint: Any) -> None:
    with pytest.raises(UserInputError, match="no CUDA GPU"):
        load_llada2(checkpoint[0], device="cuda")


def test_no_memory_is_one_line(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.empty

    def full(*shape: Any, **options: Any) -> Any:
        if len(shape) == 3:
            raise torch.OutOfMemoryError
        return original(*shape, **options)

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(ModelLoadError, match="experts='host'") as caught:
        load_llada2(checkpoint[0], device="cpu", experts="device")
    assert "\n" not in str(caught.value)


def test_too_long_a_sequence(model: DecoderModel) -> None:
    with pytest.raises(UserInputError, match="513 tokens exceed the model's 512 positions"):
        model.log_probs([1] * 513)


def test_incomplete_config(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "use_bias": True}))
    with pytest.raises(ModelLoadError, match="use_bias"):
        load_llada2(folder, device="cpu")


ORDERS = ["forced-ar", "random:3", "max-prob", "oracle-margin"]


def encoded(prompt: int, target: int, seed: int) -> EncodedSample:
    tokens = np.random.default_rng(seed).integers(0, 97, prompt + target)
    return EncodedSample(f"s{seed}", tokens[:prompt], tokens[prompt:])


def test_scoring_equals_the_plain_decoder(model: DecoderModel) -> None:
    """Prompt tails inside the first block, targets that end inside a block, several orders in one batch."""
    small = model.with_block_size(8)
    samples = [encoded(11, 9, 1), encoded(16, 8, 2)]
    orders = parse_policies(ORDERS)
    columns = score_batch(small, samples, orders)
    for s, sample in enumerate(samples):
        for o, order in enumerate(orders):
            mine = (columns["sample"] == s) & (columns["order"] == o)
            plain = reference_score(small, sample, order)
            assert columns["position"][mine].tolist() == [reveal.position for reveal in plain]
            assert np.abs(columns["logq"][mine] - [reveal.logq for reveal in plain]).max() < 1e-4


@pytest.mark.parametrize(
    ("temperature", "specs"),
    [
        (0.0, ["reverse-ar", "max-prob"]),
        (0.8, ["reverse-ar", "max-prob"]),
        (
            0.0,
            ["max-prob+above=0.05:4", "max-prob+p2=3", "max-prob+above=0.03+edit=0.1:2"],
        ),  # blocks end apart
    ],
)
def test_generating_equals_the_plain_decoder(
    model: DecoderModel, temperature: float, specs: list[str]
) -> None:
    small = model.with_block_size(8)
    samples = [encoded(11, 0, 1), encoded(3, 0, 2)]
    orders = parse_policies(specs)
    settings = GenerationSettings(max_new_tokens=10, temperature=temperature, stop_at_eos=False)
    columns = generate_batch(small, samples, orders, settings).columns
    for s, sample in enumerate(samples):
        for o, order in enumerate(orders):
            mine = (columns["sample"] == s) & (columns["order"] == o)
            plain = reference_generate(small, sample, order, 10, temperature=temperature, stop_at_eos=False)
            assert columns["position"][mine].tolist() == [reveal.position for reveal in plain]
            assert columns["token_id"][mine].tolist() == [reveal.token for reveal in plain]
            assert np.abs(columns["logq"][mine] - [reveal.logq for reveal in plain]).max() < 1e-4


def test_suggested_batch(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def free(amount: Any) -> None:
        monkeypatch.setattr("orderlens.models.engine.model.free_bytes", lambda _: amount)

    free(fit.WORKING_BYTES + 10**6)
    few = model.suggested_batch(400)
    assert 1 <= few < model.suggested_batch(40) <= model.unit_sequences
    free(10**13)
    assert model.suggested_batch(400) == model.unit_sequences == 5 * fit.MAX_BATCH
    free(None)
    assert model.suggested_batch(400) == 8
