"""Checkpoint folders with nonsense in their small files: a model or one line, never another error."""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import support
from orderlens.errors import ModelLoadError, OrderLensError
from orderlens.models.loading import load_model

WRITERS = {
    "Dream": lambda folder: support.write_dense(folder, family="Dream"),
    "mdlm": support.write_mdlm,
    "llada2": support.write_llada2,
}
JUNK: list[Any] = [None, "x", -1, 0, 1.5, [], {}, True, 10**12, float("nan"), [None], "", {"a": 1}]
WHOLE = ["[]", "3", '"x"', "null", "", "{"]
MORE = {
    "config.json": (),
    "tokenizer_config.json": ("added_tokens_decoder", "chat_template", "eos_token", "mask_token"),
    "generation_config.json": ("eos_token_id", "mask_token_id", "mask_id"),
}
"""Small files, and fields that a folder may have besides those written."""
PER_FIELD = 2


def changes(found: dict[str, Any], more: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the file with one field spoilt at a time, each by a few kinds of junk."""
    names = dict.fromkeys((*found, *more))
    out = []
    for name in names:
        first = zlib.crc32(name.encode()) % len(JUNK)
        kinds = itertools.islice(itertools.cycle(JUNK), first, first + PER_FIELD)
        out += [{**found, name: value} for value in kinds]
    return out


@pytest.mark.parametrize("family", WRITERS)
def test_nonsense_is_refused_in_one_line_or_harmless(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    WRITERS[family](folder)
    tried = 0
    for name, more in MORE.items():
        path = folder / name
        before = path.read_text() if path.exists() else None
        texts = [json.dumps(value) for value in changes(json.loads(before or "{}"), more)]
        for text in [*texts, *WHOLE]:
            path.write_text(text)
            with contextlib.suppress(OrderLensError):  # anything else fails the test
                load_model(str(folder), device="cpu")
            tried += 1
        if before is None:
            path.unlink()
        else:
            path.write_text(before)
    assert tried > 50
    assert load_model(str(folder), device="cpu").vocab_size > 0


@pytest.mark.parametrize("value", ["x", 3, [1], {"a": 1}, {"5": "x"}])
def test_special_tokens_that_are_no_table_are_named(value: object, tmp_path: Path) -> None:
    support.write_dense(tmp_path, family="Dream")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": value}))
    with pytest.raises(ModelLoadError, match="added_tokens_decoder must map token ids to objects"):
        load_model(str(tmp_path), device="cpu")
