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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.5)])
def test_sessions_on_the_gpu_give_what_the_cpu_gives(tmp_path, family, dtype, tolerance):
    if family not in ("mdlm", "bd3lm", "sedd"):
        pytest.importorskip("transformers")
    getattr(support, f"write_{family}")(tmp_path)
    here = load_model(str(tmp_path), device="cpu")
    there = load_model(str(tmp_path), device="cuda", dtype=dtype)
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
        assert np.abs(found - expected).max() < tolerance
