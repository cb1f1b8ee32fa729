"""The manual's example of a causal network over a reordered sequence does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
MASK = 30


def example(network: Any) -> Any:
    """Run the page's code with a small network instead of the published one."""
    text = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n([^`]*def wedlm[^`]*)```", text)
    code = re.sub(r"network = .*\n", "", code).replace("151665", str(MASK))
    names: dict[str, Any] = {"network": network, "tokenizer": None}
    exec(code, names)
    return names["model"]


def probabilities(model: Any, tokens: Any) -> Any:
    return np.exp(model.log_probs(tokens.tolist()))


def test_a_mask_sees_known_tokens_and_earlier_masks_only() -> None:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Qwen2Config(
        **shape, num_key_value_heads=2, vocab_size=32, max_position_embeddings=64
    )
    torch.manual_seed(0)
    network = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)
    model = example(network)
    tokens = np.array([5, MASK, 7, MASK, 9, MASK])
    before = probabilities(model, tokens)
    later = tokens.copy()
    later[4] = 11  # a known token after the masks
    revealed = tokens.copy()
    revealed[5] = 3  # the last mask becomes known
    assert np.abs(probabilities(model, later)[1] - before[1]).max() > 1e-4
    assert np.abs(probabilities(model, revealed)[1] - before[1]).max() > 1e-4
    shorter = probabilities(model, tokens[:5])  # without the last mask, which no other position sees
    assert np.abs(shorter - before[:5]).max() < 1e-5
    order = [0, 2, 4, 1, 3, 5]
    with torch.no_grad():
        ids, positions = torch.tensor(tokens[order])[None], torch.tensor(order)[None]
        rows = network(input_ids=ids, position_ids=positions).logits[0, 3:, :MASK].softmax(-1)
    expected = before[[1, 3, 5], :MASK]
    assert np.abs(rows.numpy() - expected / expected.sum(axis=1, keepdims=True)).max() < 1e-5
