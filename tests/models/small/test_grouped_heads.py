"""Query heads that share key/value heads: the folded path, the repeated path and the cached session agree."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orderlens.models.files.tokenizer import CharacterTokenizer  # noqa: E402
from orderlens.models.protocol import StateBatch  # noqa: E402
from orderlens.models.small.model import TransformerModel  # noqa: E402
from orderlens.models.small.network import (  # noqa: E402
    Transformer,
    TransformerConfig,
    attention,
)

CONFIG = TransformerConfig(
    vocab_size=40, n_layers=3, width=36, n_heads=6, n_kv_heads=2, ffn_width=48, block_size=8, qk_norm=False
)


def one_head_at_a_time(q, k, v, mask):
    outputs = []
    for head in range(q.shape[1]):
        source = head // (q.shape[1] // k.shape[1])
        scores = q[:, head] @ k[:, source].transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask, -torch.inf)
        outputs.append(scores.softmax(-1) @ v[:, source])
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("kind", ["none", "keys", "square", "causal"])
def test_each_query_head_reads_its_groups_keys(kind):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 4, generator=generator, dtype=torch.float64) for heads in (6, 2, 2))
    mask = {
        "none": None,
        "keys": torch.tensor([True, True, False, True, False]).expand(2, 1, 1, 5),
        "square": (torch.arange(5)[:, None] // 2 >= torch.arange(5)[None] // 2).expand(2, 1, 5, 5),
        "causal": torch.ones(5, 5).tril().bool().expand(2, 1, 5, 5),
    }[kind]
    found = attention(q, k, v, causal=True) if kind == "causal" else attention(q, k, v, mask)
    seen = torch.ones(2, 5, 5).bool() if mask is None else mask[:, 0].expand(2, 5, 5)
    assert torch.allclose(found, one_head_at_a_time(q, k, v, seen), atol=1e-12)


def test_the_cached_session_equals_the_plain_forward():
    torch.manual_seed(1)
    model = TransformerModel(Transformer(CONFIG), CharacterTokenizer(), name="grouped", digest="0")
    rng = np.random.default_rng(2)
    lengths = [16, 8, 0]
    sequences = [rng.integers(2, 40, size=length + 8) for length in lengths]
    session = model.open_session()
    session.prefill([sequence[:-8] for sequence in sequences], [0, 0, 0])
    windows = np.stack([sequence[-8:] for sequence in sequences])
    windows[:, 1::3] = model.mask_id
    rows, offsets = np.nonzero(windows == model.mask_id)
    states = StateBatch(np.arange(3), np.array(lengths), windows, rows, offsets)
    found = session.evaluate(states)
    logits = found.hidden_RD @ found.unembed_VD.T
    logits[:, model.mask_id] = -torch.inf
    fast = logits.log_softmax(-1).numpy()
    slow = np.stack(
        [
            model.log_probs([*sequences[row][:-8], *windows[row]])[lengths[row] + offset]
            for row, offset in zip(rows, offsets, strict=True)
        ]
    )
    assert np.allclose(np.delete(fast, model.mask_id, 1), np.delete(slow, model.mask_id, 1), atol=1e-4)
