"""Our GGUF reader: against what was written, and against the ``gguf`` package where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.errors import ModelLoadError
from orderlens.models.smol.gguf import GgufFile


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


def test_agrees_with_the_gguf_package(small_base):
    gguf = pytest.importorskip("gguf", reason="the gguf package (dev extra) is not installed")
    reader, ours = gguf.GGUFReader(small_base), GgufFile(small_base)
    assert {tensor.name for tensor in reader.tensors} == set(ours.tensors)
    for tensor in reader.tensors:
        theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(theirs, ours.tensor(tensor.name)), tensor.name
    for key, value in ours.metadata.items():
        assert reader.fields[key].contents() == value, key


def test_damaged_files_are_refused_in_one_line(tmp_path, small_base):
    whole = small_base.read_bytes()
    for name, data, words in [
        ("text", b"hello", "not a GGUF file"),
        ("header", whole[:200], "header is damaged"),
        ("version", b"GGUF\x09" + whole[5:], "version 9"),
    ]:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ModelLoadError, match=words):
            GgufFile(path)
    path = tmp_path / "short"
    path.write_bytes(whole[:-2000])
    with pytest.raises(ModelLoadError, match="ends inside"):
        GgufFile(path).tensor("blk.1.ffn_down.weight")
    with pytest.raises(ModelLoadError, match="no tensor 'x'"):
        GgufFile(small_base).tensor("x")
