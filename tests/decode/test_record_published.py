"""``ol.record`` on published decoders; needs ``ORDERLENS_PUBLISHED=FOLDER``, skipped without it.

FOLDER/decoders holds their files: ``llada.py`` (``generate.py`` of ML-GSAI/LLaDA) and ``fast_dllm.py``
(``llada/generate.py`` of NVlabs/Fast-dLLM). The network is small and random. It notes the canvas and the
logits of every call itself, and what a call decided is recomputed from these notes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import orderlens as ol

torch = pytest.importorskip("torch")
FOLDER = Path(os.environ.get("ORDERLENS_PUBLISHED", "")) / "decoders"
VOCAB, MASK, PROMPT = 60, 59, 5


def published(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = FOLDER / f"{name}.py"
    if not os.environ.get("ORDERLENS_PUBLISHED") or not path.is_file():
        pytest.skip(f"no published decoder {name} available (ORDERLENS_PUBLISHED)")
    pytest.importorskip("transformers")
    for module in ("model", "model.modeling_llada"):
        stub = ModuleType(module)
        stub.LLaDAModelLM = object  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module, stub)
    spec = importlib.util.spec_from_file_location(f"published_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Network(torch.nn.Module):
    """Notes every call as (first position, ids, log-probabilities)."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tokens, self.places = torch.nn.Embedding(VOCAB, 24), torch.nn.Embedding(256, 24)
        self.layer = torch.nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(24, VOCAB)
        self.calls: list[tuple] = []
        self.eval()

    def forward(self, ids, attention_mask=None, past_key_values=None, use_cache=False, replace_position=None):
        del attention_mask, use_cache
        start = 0
        if replace_position is not None:
            start = int(replace_position[0].nonzero()[0])
        elif past_key_values is not None:
            start = past_key_values[0][0].shape[2]
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]) + start)
        logits = 5 * self.head(self.layer(x))
        logits[..., MASK] = -50.0
        self.calls.append((start, ids.clone(), logits.detach().clone()))
        keys = torch.zeros(len(ids), 1, ids.shape[1], 1)
        return SimpleNamespace(logits=logits, past_key_values=[(keys, keys)])


def check(run: ol.Run, calls: list[tuple], final) -> None:
    """Compare the reveals of every text with the network's own notes."""
    rows = run.reveals().to_arrow().to_pylist()
    passes = [call for call in calls if (call[1] == MASK).any()]
    names = sorted({row["sample_id"] for row in rows})
    for row in rows:
        text, (start, ids, logits) = names.index(row["sample_id"]), passes[row["forward"]]
        at = row["position"] - start
        assert ids[text, at] == MASK
        assert final[text, row["position"]] == row["token_id"]
        log_p = logits[text, at].log_softmax(-1)
        assert row["logq"] == pytest.approx(float(log_p[row["token_id"]]), abs=1e-5)
        later = [c for c in calls if c[0] <= row["position"] < c[0] + c[1].shape[1]]
        after = later[[c is passes[row["forward"]] for c in later].index(True) + 1 :]
        assert not after or after[0][1][text, row["position"] - after[0][0]] == row["token_id"]
    assert len(rows) == final[:, PROMPT:].numel()
    tokens = [row["token_ids"] for row in run.outputs().to_arrow().to_pylist()]
    assert tokens == final[:, PROMPT:].tolist()
    assert "revisions" not in run.tables


def prompt(n: int):
    return torch.randint(0, 50, (n, PROMPT), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("steps", [32, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_llada(steps: int, temperature: float, remasking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, theirs = Network(), published("llada", monkeypatch)
    sizes = {"steps": steps, "gen_length": 32, "block_length": 16, "mask_id": MASK, "remasking": remasking}
    with ol.record(network, mask_id=MASK, temperature=temperature) as rec:
        final = theirs.generate(network, prompt(2), temperature=temperature, **sizes)
    check(rec.run, network.calls, final)


def test_llada_with_guidance(monkeypatch: pytest.MonkeyPatch) -> None:
    network, theirs, scale = Network(), published("llada", monkeypatch), 0.8
    sizes = {"steps": 8, "gen_length": 16, "block_length": 16, "mask_id": MASK, "cfg_scale": scale}
    seen = torch.ones(2, PROMPT, dtype=torch.long)
    with ol.record(network, mask_id=MASK, guidance=scale) as rec:
        final = theirs.generate(network, prompt(2), attention_mask=seen, **sizes)
        rec.finish(final)
    mixed = [
        (start, ids[:2], logits[2:] + (scale + 1) * (logits[:2] - logits[2:]))
        for start, ids, logits in network.calls
    ]
    check(rec.run, mixed, final)


@pytest.mark.parametrize("name", ["generate", "generate_with_prefix_cache", "generate_with_dual_cache"])
@pytest.mark.parametrize("threshold", [None, 0.05])
def test_fast_dllm(name: str, threshold: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    network, theirs = Network(), published("fast_dllm", monkeypatch)
    sizes = {"steps": 16, "gen_length": 16, "block_length": 8, "mask_id": MASK, "threshold": threshold}
    with ol.record(network, mask_id=MASK) as rec:
        final, _ = getattr(theirs, name)(network, prompt(1), **sizes)
    check(rec.run, network.calls, final)
