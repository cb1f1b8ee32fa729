"""The checkpoint that the benchmark writes is one that a user could have: it loads, and reads its texts."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from orderlens.models.families.llada2 import load_llada2

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "write_llada2.py"


def test_it_loads_with_its_texts_and_special_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [str(tmp_path), "--tiny", "--device", "cpu", "--texts", "3", "--length", "20"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    model = load_llada2(tmp_path, device="cpu")
    assert (model.mask_id, model.eos_ids) == (503, {500})
    assert abs(float(model.weights.layers[1].input_norm_C.float().mean()) - 1) < 0.05
    assert 0.015 < float(model.weights.unembed_VC.float().std()) < 0.025
    for line in (tmp_path / "texts.jsonl").read_text().splitlines():
        text = json.loads(line)["text"]
        ids = model.tokenizer.encode(text)
        assert len(ids) == 20
        assert model.tokenizer.decode(ids) == text
    assert model.log_probs(ids).shape == (20, 512)
