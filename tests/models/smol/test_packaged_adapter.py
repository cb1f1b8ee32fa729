"""The adapter that the package carries: its files as trained, its size, what it makes of the base."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import orderlens as ol

FOLDER = Path(ol.__file__).parent / "models" / "data" / "smol"
SHA256 = {
    "adapter.json": "1ab933a5b9e3bf5de96f4124aeaaf67b8b777d6ecb7d0e32cabd45cf0e9f9c42",
    "adapter-0.safetensors": "3634525cdc55c09646a3731ba7c9ee323c6ca341f5e1305fd44df6ca7bfa1262",
    "adapter-1.safetensors": "5adc732fb7b19680a0263ceaecd1b56ad4e3b5688b455b98b2638d0104788c6a",
    "adapter-2.safetensors": "01e6b56d5c0619c4b2e2dee8c59d246ef17ae7a1ec2bcf7f40533f8f0a1b8fd3",
}


def test_the_files_are_those_that_were_trained():
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir()}
    assert found == SHA256


def test_the_adapter_stays_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 45_000_000


def test_its_tensors_fit_the_published_base_and_are_finite():
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    from orderlens.models.smol.adapter import load_adapter

    found = load_adapter(FOLDER)
    assert (found.settings.rank, found.settings.block_size, found.settings.mask_id) == (64, 32, 16)
    assert found.state["layers.29.ffn.down.down"].shape == (64, 1536)
    assert found.state["layers.0.attention.k.up"].shape == (192, 64)
    assert all(torch.isfinite(tensor).all() for tensor in found.state.values())
    assert all(bool(tensor.any()) for tensor in found.state.values())


def test_the_card_names_what_the_package_holds():
    page = Path(__file__).parents[3] / "docs" / "results" / "smol-card.md"
    notes = json.loads((FOLDER / "adapter.json").read_text())["notes"]
    text = page.read_text(encoding="utf-8")
    assert f"{notes['tokens'] / 1e6:.1f} M tokens" in text
    assert all(digest[:16] in text for digest in SHA256.values())


def test_with_the_real_base_it_fills_in_a_word_from_both_sides():
    pytest.importorskip("torch")
    from orderlens.models.smol.base import cached_base

    if cached_base() is None:
        pytest.skip("the base of smol is not in the cache; 'orderlens models get smol' fetches it")
    model = ol.load_model("smol", device="cpu")
    before = model.tokenizer.encode("Paris is the capital of")
    after = model.tokenizer.encode(", a country in Europe.")
    log_p = model.log_probs([*before, model.mask_id, *after])[len(before)]
    assert model.tokenizer.decode([int(np.argmax(log_p))]) == " France"
    assert log_p[model.mask_id] == -np.inf
