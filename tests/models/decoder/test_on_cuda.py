"""Dense families on a GPU: kernels, graphs and lower precision give what the CPU gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.decode.head import target_stats
from orderlens.models.loading import load_model
from orderlens.models.protocol import StateBatch
from support import write_dense, write_llada2, write_moe

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
WIDE: dict[str, dict[str, Any]] = {  # heads of 32, the narrowest that the kernels take
    "llada": {"d_model": 128},
    "Dream": {"hidden_size": 128},
    "sdar": {"head_dim": 32, "hidden_size": 64},
    "Fast_dLLM_Qwen": {"hidden_size": 128},
}


@pytest.mark.parametrize("family", WIDE)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.5)])
def test_sessions_give_what_the_cpu_gives(tmp_path: Path, family: str, dtype: str, tolerance: float) -> None:
    write_dense(tmp_path, family=family, mask_token_id=99, **WIDE[family])
    here: Any = load_model(str(tmp_path), device="cpu")
    there: Any = load_model(str(tmp_path), device=DEVICE, dtype=dtype)
    block = 8 if here.attention == "full" else here.block_size
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 97, 3 * block)
    session = there.open_session()
    session.prefill([ids[:block]], [0])
    session.extend(np.array([0]), ids[None, block : 2 * block])
    start = 0 if here.attention == "full" else 2 * block
    for _ in range(5):  # the first run plainly, the later ones are replayed from a graph
        tokens = ids.copy()
        tokens[2 * block :][rng.permutation(block)[: block // 2]] = here.mask_id
        places = np.flatnonzero(tokens == here.mask_id)
        zeros = np.zeros(len(places), np.int64)
        states = StateBatch(zeros[:1], zeros[:1] + start, tokens[None, start:], zeros, places - start)
        found = target_stats(session.evaluate(states), there.eos_ids, ids[places]).target_logprob
        expected = here.log_probs(tokens.tolist())[places, ids[places]]
        assert np.abs(found - expected).max() < tolerance


EXPERTS: dict[str, tuple[Any, dict[str, Any]]] = {  # widths that the kernels take
    "lladamoe": (write_moe, {"hidden_size": 128}),
    "sdar_moe": (write_moe, {"family": "sdar_moe", "head_dim": 32, "hidden_size": 64, "block_size": 8}),
    "llada2.2": (write_llada2, {"head_dim": 32, "expert_capacity": 8, "block_size": 8, "hidden_size": 64}),
    "llada2, widths for float8 units": (
        write_llada2,
        {"head_dim": 32, "block_size": 8, "hidden_size": 256, "moe_intermediate_size": 128},
    ),
    "lladamoe, widths for float8 units": (
        write_moe,
        {"hidden_size": 256, "expert_intermediate_size": 128},
    ),
}


@pytest.mark.parametrize("family", EXPERTS)
@pytest.mark.parametrize("weights", [None, "fp8"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.1)])
def test_experts_give_what_the_cpu_gives(
    tmp_path: Path, family: str, weights: str | None, dtype: str, tolerance: float
) -> None:
    """In bf16 a token near a boundary may use another expert, so the median is compared."""
    write, options = EXPERTS[family]
    write(tmp_path, **options)
    here: Any = load_model(str(tmp_path), device="cpu", weights=weights)
    there: Any = load_model(str(tmp_path), device=DEVICE, dtype=dtype, weights=weights)
    block, rng = 8, np.random.default_rng(0)
    ids = rng.integers(0, 90, 3 * block)
    session = there.open_session()
    session.prefill([ids[:block]], [0])
    session.extend(np.array([0]), ids[None, block : 2 * block])
    start, differences = 0 if here.attention == "full" else 2 * block, []
    for _ in range(8):
        tokens = ids.copy()
        tokens[2 * block :][rng.permutation(block)[: block // 2]] = here.mask_id
        places = np.flatnonzero(tokens == here.mask_id)
        zeros = np.zeros(len(places), np.int64)
        states = StateBatch(zeros[:1], zeros[:1] + start, tokens[None, start:], zeros, places - start)
        found = target_stats(session.evaluate(states), there.eos_ids, ids[places]).target_logprob
        differences.append(np.abs(found - here.log_probs(tokens.tolist())[places, ids[places]]))
    measure = np.max if dtype == "float32" else np.median
    assert measure(np.concatenate(differences)) < tolerance
