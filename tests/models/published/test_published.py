"""Compares the authors' code with ours; needs ``ORDERLENS_PUBLISHED=FOLDER``, skipped without it.

FOLDER holds a file per family (``FAMILY.py``, named as in ``CASES``) that wraps published code in functions:

``logits(checkpoint, tokens)``
    [L, V] of one canvas; row i predicts position i, as their sampler reads it.
``reveals(checkpoint, prompt, length, policy, block_size)``
    What each pass reveals: [[(position, token, log p), …], …]. MASK must not be drawn: its logit is −inf. A
    rule they do not have (None), or no function at all, is skipped. ``BLOCKS = 1``: they decode without
    blocks.

The checkpoints are small and random, of shapes that no other test has. The largest differences are printed
at the end.
"""

from __future__ import annotations

import importlib.util
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import support
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

FOLDER = os.environ.get("ORDERLENS_PUBLISHED")
if not FOLDER:
    pytest.skip("no published code available (ORDERLENS_PUBLISHED)", allow_module_level=True)
ODD = {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "num_hidden_layers": 3}
THREE = {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3, "rms_norm_eps": 1e-4}
DIT = {"cond_dim": 7, "n_blocks": 3, "n_heads": 5}
SAME = 5e-5
"""Float32 through a few layers, logits up to 10: two ways of summing differ by about 2e-5."""
POLICIES = (
    *(
        "max-prob",
        "top-margin",
        "entropy",
        "forced-ar",
        "max-prob+dream",
        "entropy+dream=6",
        "max-prob+steps=3",
    ),
    *("max-prob+threshold=0.3", "max-prob+above=0.3"),
)


class Case(NamedTuple):
    """A family, who writes a checkpoint of it, and values of config.json."""

    family: str
    write: Callable[..., Any]
    changes: dict[str, Any]


def dense(family: str, **changes: Any) -> Case:
    given = {"family": family, "mask_token_id": 99, "tokenizer": False, **changes}
    return Case(family, support.write_dense, given)


def moe(**changes: Any) -> Case:
    return Case("llada2_moe", support.write_llada2, changes)


CASES = [
    dense("llada", d_model=60, n_heads=6, n_kv_heads=3, include_qkv_bias=True, rope_theta=12345.0),
    dense("llada", d_model=40, n_heads=5, n_kv_heads=1, n_layers=4, weight_tying=True, rms_norm_eps=1e-3),
    dense("llada", d_model=36, n_heads=3, n_kv_heads=3, mlp_hidden_size=20, rope_full_precision=False),
    dense("Dream", **ODD, rope_theta=777.0),
    dense("Dream", **THREE, tie_word_embeddings=True),
    dense("sdar", **ODD, head_dim=14, block_size=7),
    dense("sdar", num_key_value_heads=1, head_dim=22, tie_word_embeddings=True, block_size=4),
    dense("sdar", **THREE, head_dim=8, block_size=16, rope_theta=777.0),
    dense("Fast_dLLM_Qwen", **ODD, bd_size=32),
    dense("Fast_dLLM_Qwen", **THREE, bd_size=32, tie_word_embeddings=True),
    moe(**ODD, head_dim=24, partial_rotary_factor=0.25, num_experts=20, n_group=5, num_shared_experts=2),
    moe(num_experts_per_tok=1, first_k_dense_replace=0, n_group=1, topk_group=1, routed_scaling_factor=1.7),
    moe(**THREE, head_dim=10, partial_rotary_factor=1.0, num_hidden_layers=4, first_k_dense_replace=2),
    Case("lladamoe", support.write_moe, {**ODD, "partial_rotary_factor": 0.4, "rope_theta": 12345.0}),
    Case("lladamoe", support.write_moe, {"moe_router_enable_expert_bias": True, "moe_layer_freq": [1, 1, 1]}),
    Case("sdar_moe", support.write_moe, {"family": "sdar_moe", "norm_topk_prob": False, "block_size": 8}),
    Case("sdar_moe", support.write_moe, {"family": "sdar_moe", **ODD, "head_dim": 14, "block_size": 4}),
    Case("mdlm", support.write_mdlm, {"hidden_dim": 30, **DIT}),
    Case("mdlm", support.write_mdlm, {"hidden_dim": 48, "n_heads": 3, "time_conditioning": True}),
    Case("bd3lm", support.write_bd3lm, {"hidden_dim": 30, **DIT, "block_size": 5, "model_length": 60}),
    Case("bd3lm", support.write_bd3lm, {"hidden_dim": 48, "n_heads": 3, "block_size": 16}),
    Case("sedd", support.write_sedd, {"hidden_size": 30, **DIT}),
    Case("sedd", support.write_sedd, {"hidden_size": 48, "n_heads": 3, "scale_by_sigma": False}),
]


@pytest.fixture(scope="module")
def largest(request: pytest.FixtureRequest) -> Iterator[dict[str, float]]:
    """Largest difference per family and kind of number; printed at the end."""
    found: dict[str, float] = defaultdict(float)
    yield found
    plugins: Any = request.config.pluginmanager
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        for name, value in found.items():
            plugins.getplugin("terminalreporter").write_sep("-", f"{name}: {value:.1e}")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.family)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path, Any, str]:
    """The published code, a checkpoint, our model of it, and the family's name."""
    found: Case = request.param
    path = Path(str(FOLDER), f"{found.family}.py")
    if not path.is_file():
        pytest.skip(f"{FOLDER} has no {path.name}")
    spec = importlib.util.spec_from_file_location(f"published_{found.family}", path)
    assert spec is not None
    assert spec.loader is not None
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    folder = tmp_path_factory.mktemp(found.family)
    found.write(folder, **found.changes)
    return theirs, folder, load_model(str(folder), device="cpu"), found.family


def canvas(model: Any, length: int, share: float) -> list[int]:
    rng = np.random.default_rng(length)
    tokens = rng.integers(0, 90, length)
    tokens[rng.random(length) < share] = model.mask_id
    return [int(token) for token in tokens]


@pytest.mark.parametrize("blocks", [1, 3])
def test_conditionals(case: Any, largest: dict[str, float], blocks: int) -> None:
    theirs, folder, ours, family = case
    tokens = canvas(ours, blocks * ours.block_size, 0.5)
    hidden = np.array(tokens) == ours.mask_id
    found = ours.log_probs(tokens)[hidden]
    kept = np.isfinite(found)
    logits = np.where(kept, np.asarray(theirs.logits(folder, tokens), np.float64)[hidden], -np.inf)
    top = logits.max(axis=1, keepdims=True)
    expected = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    difference = np.abs(found[kept] - expected[kept]).max()
    largest[f"{family}, conditionals"] = max(largest[f"{family}, conditionals"], difference)
    assert difference < SAME


@pytest.mark.parametrize("policy", POLICIES)
def test_reveals(case: Any, largest: dict[str, float], policy: str) -> None:
    theirs, folder, ours, family = case
    size, blocks = ours.block_size, getattr(theirs, "BLOCKS", 2)
    tail = size // 2 if "+" not in policy else 0  # their counts of sets are those of whole blocks
    prompt, length = canvas(ours, 2 * size + tail, 0.0), blocks * size
    wanted = getattr(theirs, "reveals", lambda *_: None)(folder, prompt, length, policy, size)
    if wanted is None:
        pytest.skip(f"their code has no rule like {policy}")
    settings = GenerationSettings(max_new_tokens=length, stop_at_eos=False)
    sample = EncodedSample("x", np.array(prompt), np.array([], np.int64))
    columns = generate_batch(ours, [sample], parse_policies(policy), settings).columns
    names = ("forward", "position", "token_id", "logq")
    rows = list(zip(*(columns[name].tolist() for name in names), strict=True))
    shown = [
        sorted(row[1:] for row in rows if row[0] == number) for number in sorted({row[0] for row in rows})
    ]
    wanted = [sorted(found) for found in wanted if found]
    pairs = [[[reveal[:2] for reveal in found] for found in side] for side in (shown, wanted)]
    assert pairs[0][: len(wanted)] == pairs[1]
    logps = [np.array([row[2] for found in side for row in found]) for side in (shown[: len(wanted)], wanted)]
    difference = np.abs(logps[0] - logps[1]).max()
    largest[f"{family}, log q"] = max(largest[f"{family}, log q"], difference)
    assert difference < SAME
