"""Nemotron-Labs-Diffusion: causal past, full current block, autoregressive first token of a block.

The body is compared with transformers' Ministral 3 under explicit masks; decoding with a plain restatement of
the authors' ``generate`` and ``ar_generate`` on that body.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orderlens as ol
from orderlens.errors import ModelLoadError
from orderlens.models.families import nemotron
from orderlens.models.loading import load_model
from support import write_dense

FAMILY, MASK, BLOCK = "nemotron_labs_diffusion", 99, 8
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 128, "mscale": 1.0}
IDS = np.random.default_rng(3).integers(0, 97, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("nemotron")
    write_dense(path, family=FAMILY)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_model(str(folder), device="cpu")


@pytest.fixture(scope="module")
def body(folder: Path) -> Any:
    """Log-probabilities [L, V] of transformers' network: rows from ``low`` on see all, others the past."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    from safetensors.torch import load_file

    values = json.loads((folder / "config.json").read_text())
    names = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads head_dim"
    names += " num_key_value_heads rms_norm_eps max_position_embeddings rope_parameters"
    config = transformers.Ministral3Config(**{name: values[name] for name in names.split()})
    config._attn_implementation = "eager"
    network = transformers.Ministral3ForCausalLM(config).eval()
    tensors: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    renamed = {"diffusion_head.weight": "lm_head.weight"}
    network.load_state_dict({renamed.get(n, n.replace("encoder.", "model.")): v for n, v in tensors.items()})

    def rows(ids: Any, low: int) -> Any:
        length = len(ids)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden[low:] = False
        bias = torch.zeros(length, length).masked_fill(hidden, torch.finfo(torch.float32).min)
        with torch.no_grad():
            logits = network(torch.as_tensor(ids)[None], attention_mask=bias[None, None]).logits[0].double()
        logits[:, [MASK, *range(102, 112)]] = -torch.inf  # the tokenizer has 102 tokens
        return logits.log_softmax(-1).numpy()

    return rows


def close(found: Any, expected: Any) -> bool:
    return bool(np.abs(np.exp(found) - np.exp(expected)).max() < 2e-6)


def test_rows_are_those_of_the_body_under_the_mask(model: Any, body: Any) -> None:
    ids = IDS[:21].copy()
    ids[[3, 17, 19]] = MASK
    found = model.log_probs(ids.tolist(), grid_offset=5)  # blocks [0, 5), [5, 13), [13, 21)
    for low, high in ((0, 5), (5, 13), (13, 21)):
        assert close(found[low:high], body(ids[:high], low)[low:])


def test_a_masked_block_begins_with_the_row_before_it(model: Any, body: Any) -> None:
    ids = np.concatenate([IDS[:13], np.full(BLOCK, MASK)])
    found, plain = model.log_probs(ids.tolist(), grid_offset=5)[13:], body(ids, 13)
    assert close(found[0], body(ids[:13], 13)[12])
    assert not close(found[0], plain[13])
    assert close(found[1:], plain[14:])
    ids[15] = 7  # once anything of the block is revealed, every mask predicts itself
    assert close(model.log_probs(ids.tolist(), grid_offset=5)[13:], body(ids, 13)[13:])


def authors(body: Any, prompt: Any, length: int) -> list[tuple[int, int, float, bool]]:
    """``generate`` without a threshold: (position, token, log q, is_seed) of every reveal."""
    x, reveals = list(prompt), []
    while len(x) < len(prompt) + length:
        start, row = len(x), body(x, len(x))[-1]
        x += [int(row.argmax())] + [MASK] * (BLOCK - 1)
        reveals.append((start, x[start], float(row.max()), True))
        while MASK in x:
            rows = body(x, start)
            best = max((i for i in range(start, len(x)) if x[i] == MASK), key=lambda i: rows[i].max())
            x[best] = int(rows[best].argmax())
            reveals.append((best, x[best], float(rows[best].max()), False))
    return reveals


def decoded(model: Any, order: str, length: int, **options: Any) -> Any:
    sample = ol.Sample("x", IDS[:11].tolist())
    run = ol.generate(model, [sample], orders=[order], max_new_tokens=length, stop_at_eos=False, **options)
    return run.reveals().to_pandas().sort_values("step")


def test_decoding_is_that_of_the_authors(model: Any, body: Any) -> None:
    rows = decoded(model, "seed-first", 3 * BLOCK)
    position, token, logq, seed = zip(*authors(body, IDS[:11], 3 * BLOCK), strict=True)
    assert rows["position"].tolist() == list(position)
    assert rows["token_id"].tolist() == list(token)
    assert np.allclose(rows["logq"], logq, atol=2e-5)
    assert rows["is_seed"].tolist() == list(seed)


def test_blocks_of_one_token_are_ar_generate(model: Any, body: Any) -> None:
    rows, x = decoded(model, "forced-ar", 9, block_size=1), IDS[:11].tolist()
    for token, logq, seed in zip(rows["token_id"], rows["logq"], rows["is_seed"], strict=True):
        row = body(x, len(x))[-1]
        assert (token, seed) == (int(row.argmax()), True)
        assert abs(logq - row.max()) < 2e-5
        x.append(token)


def test_seeds_are_marked_when_scoring(model: Any) -> None:
    sample = ol.Sample("x", IDS[:11].tolist(), IDS[11:31].tolist())
    for anchor, seeds in (("prompt", [11, 19, 27]), ("zero", [16, 24])):
        run = ol.score(model, [sample], orders=["forced-ar", "reverse-ar"], anchor=anchor)
        rows = run.reveals().to_pandas()
        assert rows["position"][rows["is_seed"] & (rows["order"] == "forced-ar")].tolist() == seeds
        assert not rows["is_seed"][rows["order"] == "reverse-ar"].any()
    others = ol.score("hmm", [ol.Sample("x", "ab", "cd")], orders=["forced-ar"]).reveals().to_pandas()
    assert others["is_seed"].isna().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": None}, "rope_parameters must state one YaRN scaling"),
        ({"rope_parameters": []}, "rope_parameters must state one YaRN scaling"),
        ({"rope_parameters": {"factor": 16.0}}, "rope_parameters: lacks rope_type"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling: lacks mscale"),
        ({"dlm_paradigm": "autoregressive"}, "dlm_paradigm='autoregressive' is not supported"),
        ({"causal_context": False}, "causal_context=False is not supported"),
        ({"sliding_window": 64}, "sliding_window=64 is not supported"),
        ({"rms_norm_eps": None}, "lacks rms_norm_eps"),
        ({"rope_parameters": {**YARN, "mscale_all_dim": 1.0}}, "lacks rope_theta"),
        ({"rope_theta": 7.0}, r"rope_theta=7\.0, but rope_parameters\.rope_theta="),
    ],
)
def test_other_networks_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_dense(tmp_path, family=FAMILY, **changes)
    with pytest.raises(ModelLoadError, match=message):
        load_model(str(tmp_path), device="cpu")


def test_scaling_is_read_and_limits_the_length(tmp_path: Path, model: Any) -> None:
    assert (model.config.rotary_factors[0], model.config.rotary_factors[-1]) == (1.0, 1 / 16)
    assert model.max_positions == 128
    rope = {"type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "original_max_position_embeddings": 128}
    rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    for number, other in enumerate((rope, rope | {"mscale_all_dim": 0.5}, rope | {"low_freq_factor": 2.0})):
        folder = tmp_path / str(number)
        write_dense(folder, family=FAMILY, rope_parameters=other, rope_scaling=other)
        if not number:
            same: Any = load_model(str(folder), device="cpu")
            assert same.config == model.config
        else:
            with pytest.raises(ModelLoadError, match=r"mscale_all_dim|low_freq_factor"):
                load_model(str(folder), device="cpu")


def test_published_sizes() -> None:
    """Names of the hub give the shape, here by its number of parameters."""
    shapes = nemotron.DIALECT.published or {}
    sizes = {name.rsplit("-", 1)[-1]: round(shape.n_parameters / 1e9, 1) for name, shape in shapes.items()}
    assert sizes == {"3b": 3.8, "8b": 8.5, "14b": 13.5}
