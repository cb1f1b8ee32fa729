"""BERT, RoBERTa, ModernBERT and XLNet against plain implementations; what their folders may hold."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import plain_encoders as plain
import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

from orderlens.cli.doctor import examine
from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError
from orderlens.models.loading import load_model
from support import write_bert, write_modernbert, write_roberta, write_xlnet

LENGTH = 19
WRITERS = {"bert": write_bert, "roberta": write_roberta, "modernbert": write_modernbert, "xlnet": write_xlnet}
FACTS = {
    "bert": (4, {3}, 105),
    "roberta": (101, {2}, 102),
    "modernbert": (4, {3}, 105),
    "xlnet": (6, {2}, 106),
}
POSITIONS = {"bert": 200, "roberta": 198, "modernbert": 200, "xlnet": 4096}


@pytest.fixture(scope="module", params=WRITERS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def written(family, tmp_path_factory):
    folder = tmp_path_factory.mktemp(family)
    return folder, WRITERS[family](folder)


@pytest.fixture(scope="module")
def model(written):
    return load_model(str(written[0]), device="cpu")


def some_tokens(model, share=0.4):
    rng = np.random.default_rng(3)
    tokens = rng.integers(9, 100, LENGTH)
    tokens[rng.random(LENGTH) < share] = model.mask_id
    return tokens


def plain_rows(family, tensors, tokens, mask_id):
    if family == "xlnet":
        return plain.xlnet(tensors, tokens, tokens == mask_id, heads=4, layers=2)
    if family == "modernbert":
        return plain.modernbert(tensors, tokens, heads=4, layers=4, reach=4)
    return getattr(plain, family)(tensors, tokens, heads=4, layers=2)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_the_conditionals_are_those_of_the_definition(family, written, model, share):
    tokens = some_tokens(model, share)
    outputs = plain_rows(family, written[1], tokens, model.mask_id)
    outputs[:, [model.mask_id, *range(model.facts.roles.valid_vocab, model.vocab_size)]] = -np.inf
    top = outputs.max(axis=1, keepdims=True)
    expected = outputs - top - np.log(np.exp(outputs - top).sum(axis=1, keepdims=True))
    found = model.log_probs(tokens)
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    assert np.abs(found[finite] - expected[finite]).max() < 2e-4


def test_what_the_ids_mean(family, model):
    mask_id, eos_ids, vocab_size = FACTS[family]
    assert (model.mask_id, model.eos_ids, model.vocab_size) == (mask_id, eos_ids, vocab_size)
    assert model.attention == "full"
    assert model.max_positions == POSITIONS[family]
    assert not model.special_ids & {mask_id, *eos_ids}
    assert model.special_ids


def test_as_long_as_the_model_allows_and_no_longer(family, model):
    longest = min(model.max_positions, 300)
    assert model.log_probs([20] * longest).shape == (longest, model.vocab_size)
    if longest == model.max_positions:
        with pytest.raises(UserInputError, match=f"{longest + 1} tokens exceed"):
            model.log_probs([20] * (longest + 1))


def test_special_tokens_in_a_text_count_as_such(family, model):
    name = "[SEP]" if family.endswith("bert") and family != "roberta" else "</s>"
    assert model.tokenizer.encode(f"a{name}b")[1] in model.eos_ids


def test_doctor_counts_the_weights(family, written):
    about = examine(str(written[0]))["model"]
    stored = load_file(str(written[0] / "model.safetensors"))
    assert (about["family"], about["problem"]) == (family, None)
    assert about["parameters"] == sum(tensor.numel() for tensor in stored.values())


def test_a_lower_precision_is_another_model(model):
    lower = model.with_dtype("bfloat16")
    tokens = some_tokens(model)
    assert lower.digest != model.digest
    difference = np.abs(np.exp(lower.log_probs(tokens)) - np.exp(model.log_probs(tokens)))
    assert 1e-6 < difference.max() < 0.3


def test_hidden_ids_have_no_influence_on_xlnet(tmp_path):
    """Except if nothing is revealed: then the published attention reads all positions equally."""
    tensors = write_xlnet(tmp_path)
    tokens = np.arange(10, 10 + LENGTH)
    hidden = np.arange(LENGTH) % 3 == 0
    other = np.where(hidden, 77, tokens)
    rows = [plain.xlnet(tensors, ids, hidden, heads=4, layers=2)[hidden] for ids in (tokens, other)]
    assert np.array_equal(*rows)
    everything = np.ones(LENGTH, bool)
    rows = [plain.xlnet(tensors, ids, everything, heads=4, layers=2) for ids in (tokens, other)]
    assert not np.allclose(*rows)


@pytest.mark.parametrize(
    ("write", "change", "words"),
    [
        (write_bert, {"is_decoder": True}, "is_decoder=true means an autoregressive"),
        (write_bert, {"vocab_size": 90}, "tokenizer has ids up to 101, but the model's vocabulary has 90"),
        (write_bert, {"hidden_size": 36}, "another shape|cannot be read as BertForMaskedLM"),
        (write_bert, {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling=.*is not supported"),
        (write_roberta, {"pad_token_id": 4000}, "pad_token_id=4000 is outside the vocabulary"),
        (write_roberta, {"pad_token_id": None}, "lacks pad_token_id"),
        (write_xlnet, {"bi_data": True}, "bi_data=true is not supported"),
        (write_xlnet, {"attn_type": "uni"}, "attn_type='uni' is not supported"),
    ],
)
def test_what_cannot_be_loaded_is_refused(tmp_path, write, change, words):
    write(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelLoadError, match=words):
        load_model(str(tmp_path), device="cpu")


def test_a_checkpoint_without_its_head_is_refused(tmp_path):
    """transformers would fill it with random numbers."""
    write_bert(tmp_path)
    path = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(str(path)).items() if "transform" not in name}
    save_file(kept, str(path), metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lacks tensor cls\.predictions\.transform.* and 3 more"):
        load_model(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("write", "key"),
    [(write_bert, "num_hidden_layers"), (write_modernbert, "num_hidden_layers"), (write_xlnet, "n_layer")],
)
def test_a_config_with_fewer_layers_than_the_files_is_refused(tmp_path, write, key):
    """transformers would leave out the last layers."""
    write(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {key: 1}
    config.pop("layer_types", None)
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"holds tensor .*layers?\.1\..* has fewer layers"):
        load_model(str(tmp_path), device="cpu")


def test_names_of_the_first_published_bert_are_read(tmp_path):
    """Its norms have gamma and beta, it holds a next-sentence head, and the output layer is the embedding."""
    write_bert(tmp_path)
    before = load_model(str(tmp_path), device="cpu").log_probs([7, 4, 9])
    path = tmp_path / "model.safetensors"
    older = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    old = load_file(str(path))
    for new_name, old_name in older:
        old = {name.replace(new_name, old_name): tensor for name, tensor in old.items()}
    assert any(name.endswith("gamma") for name in old)
    assert not any("decoder" in name for name in old)
    old |= {"cls.seq_relationship.weight": torch.zeros(2, 32), "cls.seq_relationship.bias": torch.zeros(2)}
    save_file(old, str(path), metadata={"format": "pt"})
    assert np.allclose(load_model(str(tmp_path), device="cpu").log_probs([7, 4, 9]), before, atol=1e-5)


def test_the_first_published_config_of_modernbert_is_read(tmp_path):
    """Written by transformers 4.47: other names of the rotary bases, and keys that no class reads."""
    write_modernbert(tmp_path)
    wanted = load_model(str(tmp_path), device="cpu").log_probs([5, 4, 7, 4])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for key in ("layer_types", "rope_parameters", "dtype"):
        del config[key]
    config |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3}
    config |= {"layer_norm_eps": 1e-05, "position_embedding_type": "absolute", "torch_dtype": "float32"}
    config |= {"gradient_checkpointing": False, "transformers_version": "4.47.0.dev0"}
    path.write_text(json.dumps(config))
    assert (load_model(str(tmp_path), device="cpu").log_probs([5, 4, 7, 4]) == wanted).all()


def test_a_library_that_is_too_old_or_missing_is_one_line(tmp_path, monkeypatch):
    write_modernbert(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", SimpleNamespace(__version__="4.44.0"))
        with pytest.raises(MissingPackageError, match=r"transformers 4\.44\.0 has no ModernBertForMaskedLM"):
            load_model(str(tmp_path), device="cpu")
        patch.setitem(sys.modules, "transformers", None)
        with pytest.raises(MissingPackageError, match=r"pip install 'orderlens\[torch,hf\]'"):
            load_model(str(tmp_path), device="cpu")


def test_without_a_tokenizer_ids_work_and_text_does_not(tmp_path):
    write_bert(tmp_path, tokenizer=False, vocab_size=120)
    model = load_model(str(tmp_path), device="cpu")
    assert (model.mask_id, model.eos_ids) == (103, {102})
    assert model.log_probs([5, 103]).shape == (2, 120)
    with pytest.raises(UserInputError, match=r"this model has no tokenizer"):
        model.tokenizer.encode("hello")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 1.5),
        ("hidden_size", 0),
        ("num_attention_heads", 0),
        ("num_hidden_layers", None),
        ("hidden_act", []),
        ("tie_word_embeddings", "x"),
        ("dtype", "x"),
    ],
)
def test_a_config_that_the_library_refuses_is_one_line(field, value, tmp_path):
    write_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(ModelLoadError) as caught:
        load_model(str(tmp_path), device="cpu")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value) or field in str(caught.value)
