"""The small base and a random adapter as a Model: parity with transformers, merging, chat, left to right."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import adapter_files  # noqa: E402
from smol_causal import continue_rows  # noqa: E402

from orderlens.errors import ModelLoadError  # noqa: E402
from orderlens.models.evaluators.small import SmallEvaluator  # noqa: E402
from orderlens.models.protocol import LoadOptions  # noqa: E402
from orderlens.models.small.network import causal_attend  # noqa: E402
from orderlens.models.smol import adapter as adapters  # noqa: E402
from orderlens.models.smol import base  # noqa: E402
from orderlens.models.smol.llama import (  # noqa: E402
    GgufFile,
    pairs_to_halves,
    read_network,
    read_shape,
    read_tokenizer,
)
from orderlens.models.smol.model import build, read_original  # noqa: E402


def llama_state(network):
    config = network.config
    kv = config.kv_heads * config.head_width
    state = {
        "model.embed_tokens.weight": network.embedding.weight,
        "lm_head.weight": network.embedding.weight,
        "model.norm.weight": network.final_norm.weight,
    }
    for index, layer in enumerate(network.layers):
        q, k, v = layer.attention.qkv.weight.split((config.width, kv, kv))
        gate, up = layer.ffn.gate_up.weight.chunk(2)
        state |= {
            f"model.layers.{index}.{name}.weight": tensor
            for name, tensor in {
                "self_attn.q_proj": q,
                "self_attn.k_proj": k,
                "self_attn.v_proj": v,
                "self_attn.o_proj": layer.attention.out.weight,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.ffn.down.weight,
                "input_layernorm": layer.attention_norm.weight,
                "post_attention_layernorm": layer.ffn_norm.weight,
            }.items()
        }
    return state


def test_the_causal_reading_equals_transformers(small_base):
    transformers = pytest.importorskip("transformers")
    network = read_original(small_base, 16, "").network
    config = network.config
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.ffn_width,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.kv_heads,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=True,
            rope_parameters={"rope_theta": config.rope_theta, "rope_type": "default"},
        )
    ).eval()
    theirs.load_state_dict(llama_state(network))
    ids = torch.randint(0, config.vocab_size, (2, 23), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours = network(ids, torch.arange(23)[None], causal_attend) @ network.embedding.weight.T
        assert torch.allclose(ours, theirs(ids).logits, atol=2e-4)


def test_rotary_pairs_become_pairs_to_halves():
    rows = np.arange(8, dtype=np.float32)[:, None]
    assert pairs_to_halves(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_tokenizer_splits_digits_and_knows_its_control_tokens(small_base):
    tokenizer = read_tokenizer(GgufFile(small_base).metadata)
    for text in ["hello world", "it's 2024!\n\n\ttabs", "Über 12", "<|im_start|>user\nhello<|im_end|>\n"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("hello")) == 1
    assert len(tokenizer.encode("2024")) == 4
    assert tokenizer.encode("<|im_start|>hello<|im_end|>")[::2] == [1, 2]


def test_merging_adds_the_scaled_product_to_the_right_rows(small_base, small_adapter):
    file = GgufFile(small_base)
    config = read_shape(file.metadata, "block-causal", mask_id=16)
    plain, merged = read_network(file, config), read_network(file, config)
    found = adapters.load_adapter(small_adapter)
    adapters.merge(merged, found.state, found.settings)
    change = merged.layers[1].attention.qkv.weight - plain.layers[1].attention.qkv.weight
    wanted = found.state["layers.1.attention.k.up"] @ found.state["layers.1.attention.k.down"]
    assert torch.allclose(change[64:96], found.settings.scale * wanted, atol=1e-6)
    assert torch.equal(merged.embedding.weight[16], found.state["mask"])
    assert torch.equal(merged.embedding.weight[17:], plain.embedding.weight[17:])
    assert torch.equal(merged.final_norm.weight, found.state["final_norm.weight"])


def test_the_model_has_the_roles_and_the_chat_format_of_the_base(small_base, small_adapter):
    model = build(small_base, small_adapter, "0" * 64, LoadOptions())
    assert (model.name, model.block_size, model.mask_id, model.attention) == ("smol", 32, 16, "block-causal")
    assert model.eos_ids == {0, 2}
    assert model.special_ids == set(range(17)) - {0, 2, 16}
    assert model.with_block_size(8).eos_ids == {0, 2}
    prompt = model.chat.render([{"role": "user", "content": "hello"}])
    assert prompt.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    other = build(small_base, small_adapter, "0" * 64, LoadOptions(dtype="bfloat16"))
    assert other.digest != model.digest


def test_smol_scores_and_generates_through_the_front_door(small_base, small_adapter):
    import orderlens as ol

    model = build(small_base, small_adapter, "0" * 64, LoadOptions())
    sample = ol.Sample("one", "hello world, hello", " hello world, hello again")
    run = ol.score(model, [sample], orders=["forced-ar", "random"])
    table = run.samples().to_pandas()
    assert np.isfinite(table["log_prob"]).all()
    run = ol.generate(model, ["hello"], orders=["max-prob"], max_new_tokens=16)
    assert len(run.reveals().to_pandas()) >= 16


@pytest.mark.parametrize("damage", ["record", "shard", "shape"])
def test_a_damaged_adapter_is_refused(small_base, small_adapter, damage):
    record = small_adapter / adapters.SETTINGS
    if damage == "record":
        record.write_text("{")
    if damage == "shard":
        (small_adapter / "adapter-0.safetensors").unlink()
    if damage == "shape":
        record.write_text(json.dumps({**json.loads(record.read_text()), "rank": 5}))
    with pytest.raises(ModelLoadError):
        build(small_base, small_adapter, "0" * 64, LoadOptions())


def test_shards_stay_small_and_come_back(tmp_path, monkeypatch, small_adapter):
    found = adapters.load_adapter(small_adapter)
    monkeypatch.setattr(adapter_files, "SHARD_BYTES", 3000)
    files = adapter_files.save_adapter(tmp_path / "again", found.state, found.settings, {})
    assert len(files) > 3
    assert max(path.stat().st_size for path in files[1:]) < 3000 + 4000  # and a header each
    again = adapters.load_adapter(tmp_path / "again")
    assert all(torch.equal(again.state[name], found.state[name]) for name in found.state)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_cached_continuation_equals_plain_forwards(small_base, temperature):
    """Prompts of several lengths in one batch continue as each does alone, even if others end early."""
    network = read_original(small_base, 16, "").network
    rng = np.random.default_rng(4)
    prompts = [[int(i) for i in rng.integers(17, 200, size=size)] for size in (3, 9, 5, 9)]
    stops = frozenset(range(17, 40))
    generator = torch.Generator().manual_seed(5)
    found = continue_rows(network, prompts, 40, stops, temperature=temperature, generator=generator)
    for prompt, tail in zip(prompts, found, strict=True):
        assert all(token not in stops for token in tail[:-1])
        assert len(tail) == 40 or tail[-1] in stops
        if temperature:
            continue
        for place, token in enumerate(tail):
            ids = torch.tensor([[*prompt, *tail[:place]]])
            hidden = network(ids, torch.arange(ids.shape[1])[None], causal_attend)[0, -1]
            logits = hidden @ network.embedding.weight.T
            logits[16] = -torch.inf
            best = logits.max()
            assert logits[token] >= best - 1e-4


def test_the_original_is_an_evaluator(small_base):
    evaluator = SmallEvaluator(read_original(small_base, 16, ""), "smol-ar")
    (values,) = evaluator.token_logprobs([("hello", " world")])
    assert len(values) == len(read_tokenizer(GgufFile(small_base).metadata).encode(" world"))
    assert (values < 0).all()


def test_the_real_base_predicts_english():
    path = base.cached_base()
    if path is None:
        pytest.skip("the base of smol is not in the cache; 'orderlens models get smol' fetches it")
    base.check_base(path)
    evaluator = SmallEvaluator(read_original(path, 16, ""), "smol-ar")
    (good, bad) = evaluator.token_logprobs(
        [("The capital of France is", " Paris."), ("The capital of France is", " garlic.")]
    )
    assert good.sum() > bad.sum() + 3
