"""GGUF files against what was written."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.errors import ModelLoadError
from orderlens.models.smol.llama import GgufFile


def test_metadata_and_plain_tensors_come_back_as_written(tmp_path, small_base):
    file = GgufFile(small_base)
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokenizer.ggml.add_bos_token"] is False
    assert file.metadata["tokenizer.ggml.merges"][0] == "h e"
    assert file.tensor("output_norm.weight").shape == (64,)
    assert file.tensor("output_norm.weight").min() >= 0.5


@pytest.mark.parametrize(
    ("name", "step"), [("token_embd.weight", 1 / 127), ("blk.0.ffn_down.weight", 1 / 15)]
)
def test_quantised_tensors_are_within_half_a_step(small_base, written_tensors, name, step):
    found = GgufFile(small_base).tensor(name)
    written = written_tensors[name][0]
    blocks = written.reshape(-1, 32)
    spread = np.abs(blocks).max(1) if step < 0.01 else np.ptp(blocks, axis=1)
    assert (np.abs(found.reshape(-1, 32) - blocks) <= 0.52 * step * spread[:, None] + 1e-3).all()


def test_damaged_files_are_refused_in_one_line(tmp_path, small_base):
    whole = small_base.read_bytes()
    damaged = (b"hello", whole[:200], b"GGUF\x09" + whole[5:], whole[:-2000])
    for number, data in enumerate(damaged):
        path = tmp_path / str(number)
        path.write_bytes(data)
        with pytest.raises(ModelLoadError, match="not a GGUF file, or damaged") as caught:
            GgufFile(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelLoadError, match="no such file"):
        GgufFile(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match="tensor 'x' is missing"):
        GgufFile(small_base).tensor("x")
