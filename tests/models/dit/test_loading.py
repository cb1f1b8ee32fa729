"""What MDLM, BD3-LM and SEDD folders may hold, and what is said where something is missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import save_file

from orderlens.cli.doctor import examine
from orderlens.errors import ModelLoadError, UnknownNameError
from orderlens.models.dit import model as gpt2
from orderlens.models.family_index import find_family
from orderlens.models.loading import load_model
from support import write_bd3lm, write_mdlm, write_sedd
from support.letters import write_letters

WRITERS = {"mdlm": write_mdlm, "bd3lm": write_bd3lm, "sedd": write_sedd}


@pytest.mark.parametrize("family", WRITERS)
def test_the_family_is_found(tmp_path, family):
    WRITERS[family](tmp_path)
    assert find_family(tmp_path) == family
    about = examine(str(tmp_path))["model"]
    assert (about["family"], about["problem"], about["dtype"]) == (family, None, "float32")
    tensors = WRITERS[family](tmp_path)
    buffers = [n for n in tensors if n.endswith("inv_freq") or n.startswith("sampling_eps")]
    assert about["parameters"] == sum(t.numel() for n, t in tensors.items() if n not in buffers)


@pytest.mark.parametrize(
    ("write", "changes", "words"),
    [
        (write_bd3lm, {"causal": True}, "causal=true means an autoregressive"),
        (write_bd3lm, {"adaln": False}, "adaln=false is not supported"),
        (write_bd3lm, {"time_conditioning": True}, "not supported with blocks"),
        (write_mdlm, {"mask_token_id": 97}, "mask and EOS have the same id"),
        (write_sedd, {"graph": "uniform"}, r"graph: type='uniform' is not supported \(only absorb\)"),
        (write_sedd, {"type": "mamba"}, "model: type='mamba' is not supported"),
    ],
)
def test_what_is_not_carried_out_is_refused(tmp_path, write, changes, words):
    write(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=words):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("n_heads", 5, "a width of 32 cannot be split into 5 heads"),
        ("cond_dim", 13, r"has shape \[192, 12\]; config.json wants \[192, 13\]"),
        ("n_blocks", 3, r"lacks tensors backbone\.blocks\.2\.norm1"),
        ("n_blocks", 1, r"holds tensors backbone\.blocks\.1\..*which a DDiT of this shape does not have"),
        ("hidden_dim", "wide", "hidden_dim='wide' must be an integer"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(tmp_path, key, value, words):
    write_mdlm(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ModelLoadError, match=words):
        load_model(str(tmp_path))


def test_geometric_noise_has_its_own_levels(tmp_path):
    write_sedd(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "noise": {"type": "geometric", "sigma_min": 0.1, "sigma_max": 2}}))
    assert load_model(str(tmp_path)).facts.size.sigmas == (0.1, 2.0)
    path.write_text(json.dumps({**config, "noise": {"type": "geometric", "sigma_min": 3, "sigma_max": 2}}))
    with pytest.raises(ModelLoadError, match=r"sigma_min=3\.0 must be below"):
        load_model(str(tmp_path))


def test_a_training_configuration_of_something_else_is_of_no_family(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"tokens": 7, "graph": {"type": "absorb"}}))
    with pytest.raises(UnknownNameError, match="neither model_type nor architectures"):
        find_family(tmp_path)


def test_buffers_may_be_missing(tmp_path):
    tensors = write_bd3lm(tmp_path)
    kept = {name: value for name, value in tensors.items() if "inv_freq" not in name and "eps" not in name}
    before = load_model(str(tmp_path)).log_probs([1, 98, 2])
    save_file(kept, str(tmp_path / "model.safetensors"))
    assert np.allclose(load_model(str(tmp_path)).log_probs([1, 98, 2]), before, atol=1e-5)


@pytest.fixture
def without_tokenizer(tmp_path):
    write_mdlm(tmp_path / "model", tokenizer=False)
    return load_model(str(tmp_path / "model"))


def test_ids_work_without_a_tokenizer(without_tokenizer, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("orderlens.common.hub.is_offline", lambda endpoint=None: True)
    monkeypatch.delenv(gpt2.VARIABLE, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", "/nonexistent")
    assert without_tokenizer.eos_ids == {97}
    assert without_tokenizer.log_probs([1, 2]).shape == (2, 99)
    monkeypatch.setattr(gpt2, "HUB", "hf:orderlens-tests/no-such-tokenizer")
    with pytest.raises(
        ModelLoadError, match=r"has no tokenizer.*tokenizer\.json into its folder.*\$ORDERLENS_GPT2"
    ):
        without_tokenizer.tokenizer.encode("hello")
    assert without_tokenizer.tokenizer.decode([5, 6]) == "5 6"


def test_a_named_folder_serves(without_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv(gpt2.VARIABLE, str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"\$ORDERLENS_GPT2 is '.*', but there is no tokenizer\.json"):
        gpt2.find_gpt2(99)
    write_letters(tmp_path, after=["<|endoftext|>"])
    assert without_tokenizer.tokenizer.decode(without_tokenizer.tokenizer.encode("hello")) == "hello"
    with pytest.raises(ModelLoadError, match="has ids up to 97, but the model's vocabulary has 90"):
        gpt2.find_gpt2(90)
