"""Families on a GPU: recorded forwards and lower precision give what the CPU gives. Skipped without CUDA."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import support
from orderlens.decode.head import target_stats
from orderlens.models.loading import load_model
from orderlens.models.protocol import StateBatch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
FAMILIES = ("mdlm", "bd3lm", "sedd", "xlnet", "bert", "roberta", "modernbert")
REPEATS = 4
"""Forwards of one shape: the first run plainly, the later ones are replayed from a graph."""


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.5)])
def test_float8_experts_on_the_gpu_give_what_the_cpu_gives(tmp_path, blocks, dtype, tolerance):
    block = {"quant_method": "fp8", "weight_block_size": [32, 32]} if blocks else None
    support.write_llada2(tmp_path, hidden_size=64, moe_intermediate_size=64, quantization_config=block)
    here = load_model(str(tmp_path), device="cpu", weights="fp8")
    there = load_model(str(tmp_path), device="cuda", dtype=dtype, weights="fp8")
    assert here.weight_format == there.weight_format == "fp8"
    compare(here, there, tolerance, n_flips=1 if dtype == "bfloat16" else 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.5)])
def test_sessions_on_the_gpu_give_what_the_cpu_gives(tmp_path, family, dtype, tolerance):
    if family not in ("mdlm", "bd3lm", "sedd"):
        pytest.importorskip("transformers")
    getattr(support, f"write_{family}")(tmp_path)
    here = load_model(str(tmp_path), device="cpu")
    there = load_model(str(tmp_path), device="cuda", dtype=dtype)
    compare(here, there, tolerance)


def compare(here, there, tolerance, n_flips=0):
    """Assert that a session on the GPU gives the log-probabilities of the readable forward on the CPU.

    In bfloat16 a token close to a routing boundary may choose another expert: ``n_flips`` per state may.
    """
    length = here.block_size if here.attention == "block-causal" else 3 * 8
    rng = np.random.default_rng(0)
    session = there.open_session()
    session.prefill([np.zeros(0, np.int64)], [0])
    for _ in range(REPEATS):
        tokens = rng.integers(12, 90, length)
        targets = tokens.copy()
        tokens[rng.permutation(length)[: length // 2]] = here.mask_id
        offsets = np.flatnonzero(tokens == here.mask_id)
        zeros = np.zeros(len(offsets), np.int64)
        states = StateBatch(zeros[:1], zeros[:1], tokens[None], zeros, offsets)
        found = target_stats(session.evaluate(states), there.eos_ids, targets[offsets]).target_logprob
        expected = here.log_probs(tokens.tolist())[offsets, targets[offsets]]
        differences = np.sort(np.abs(found - expected))
        assert differences[: len(differences) - n_flips].max() < tolerance
