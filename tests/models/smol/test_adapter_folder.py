"""Folders that are not adapters are refused in one line that names the wrong file."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("safetensors")

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.smol.adapter import SETTINGS, load_adapter


@pytest.mark.parametrize("record", ["{", "[]", "{}", json.dumps({"shards": "two"})])
def test_a_record_that_says_nothing_is_refused(tmp_path, record):
    (tmp_path / SETTINGS).write_text(record, encoding="utf-8")
    with pytest.raises(ModelLoadError, match="not valid adapter settings"):
        load_adapter(tmp_path)


def test_a_folder_without_a_record_is_no_adapter(tmp_path):
    with pytest.raises(ModelLoadError, match=f"not an adapter folder, {SETTINGS} is missing"):
        load_adapter(tmp_path)


def test_a_missing_or_spoilt_shard_is_named(small_adapter):
    shards = sorted(small_adapter.glob("adapter-*.safetensors"))
    whole = shards[-1].read_bytes()
    shards[-1].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelLoadError, match=f"{shards[-1].name}: not a safetensors file"):
        load_adapter(small_adapter)
    shards[-1].unlink()
    with pytest.raises(ModelLoadError, match=f"{shards[-1].name}: this shard of the adapter is missing"):
        load_adapter(small_adapter)


def test_an_adapter_for_another_base_says_which_tensor(small_adapter, small_base):
    from orderlens.models.smol import llama
    from orderlens.models.smol.adapter import check_adapter

    file = llama.GgufFile(small_base)
    network = llama.read_network(file, llama.read_shape(file.metadata, "block-causal", mask_id=16))
    found = load_adapter(small_adapter)
    check_adapter(found, network, small_adapter)
    name = next(name for name in found.state if name.endswith(".up"))
    rows, rank = found.state[name].shape
    found.state[name] = found.state[name][:-1]
    with pytest.raises(ModelLoadError) as caught:
        check_adapter(found, network, small_adapter)
    assert "1 tensors do not fit the base" in str(caught.value)
    assert f"'{name}': adapter ({rows - 1}, {rank}), base ({rows}, {rank})" in str(caught.value)


def test_an_installation_without_the_adapter_says_where_to_get_it(tmp_path, monkeypatch):
    from orderlens.models.protocol import LoadOptions
    from orderlens.models.smol import model

    monkeypatch.setattr(model, "require_base", lambda: tmp_path / "base.gguf")
    monkeypatch.setattr(model, "check_base", lambda _: None)
    monkeypatch.setattr(model, "adapter_folder", lambda: tmp_path)
    with pytest.raises(ModelLoadError, match=r"has no adapter for smol; train one with recipes/smol.py"):
        model.load_smol("", LoadOptions())
    with pytest.raises(UserInputError, match="model 'smol:x': smol takes no options"):
        model.load_smol("x", LoadOptions())


@pytest.mark.parametrize("absent", ["llama.block_count", "llama.rope.freq_base", "tokenizer.ggml.tokens"])
def test_a_base_that_does_not_say_its_shape_is_refused(small_base, absent):
    from orderlens.models.smol import llama

    metadata = dict(llama.GgufFile(small_base).metadata)
    del metadata[absent]
    with pytest.raises(ModelLoadError, match=f"the GGUF file lacks the key '{absent}'"):
        llama.read_shape(metadata, "block-causal", mask_id=16)


def test_a_base_with_another_tokenizer_is_refused(small_base):
    from orderlens.models.smol import llama

    metadata = dict(llama.GgufFile(small_base).metadata) | {"tokenizer.ggml.pre": "llama3"}
    with pytest.raises(ModelLoadError, match=r"tokenizer is \('gpt2', 'llama3'\); supported is"):
        llama.read_tokenizer(metadata)
