"""Everything that can be wrong with a checkpoint or a request, from the command line: one clear line each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors_torch

import orderlens as ol
from orderlens.cli.main import main
from orderlens.errors import DeviceMemoryError, ModelLoadError
from orderlens.models.decoder.model import expert_place
from orderlens.models.families.llada2 import FLASH, load_llada2, parse_config
from orderlens.models.files.checkpoint import Checkpoint
from orderlens.models.loading import load_model

Make = Callable[..., tuple[Path, dict[str, Any]]]
SHARD = "model-00002-of-00003.safetensors"


def generate(folder: Path, out: Path, prompt: str = "Hi there", *options: str) -> int:
    data = out.parent / "prompts.jsonl"
    data.write_text(json.dumps({"id": "a", "prompt": prompt}) + "\n")
    arguments = ["generate", "--model", str(folder), "--data", str(data), "--orders", "max-prob"]
    return main(
        [*arguments, "--max-new-tokens", "4", "--device", "cpu", "--out", str(out), "--json", *options]
    )


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | changes))

    return edit


def edit_shard(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the tensors of a shard, and the index with it."""

    def edit(folder: Path) -> None:
        tensors = safetensors_torch.load_file(folder / SHARD)
        change(tensors)
        safetensors_torch.save_file(tensors, folder / SHARD)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        others = {name: file for name, file in index["weight_map"].items() if file != SHARD}
        index["weight_map"] = others | dict.fromkeys(tensors, SHARD)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return edit


def rewrite(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def truncate(folder: Path) -> None:
    data = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(data[: len(data) // 2])


def first(tensors: dict[str, Any], ending: str) -> str:
    return next(name for name in sorted(tensors) if name.endswith(ending))


def to_float64(tensors: dict[str, Any]) -> None:
    name = first(tensors, "proj.weight")
    tensors[name] = tensors[name].double()


def drop_one(tensors: dict[str, Any]) -> None:
    del tensors[first(tensors, "down_proj.weight")]


def add_one(tensors: dict[str, Any]) -> None:
    tensors["model.layers.0.attention.rotary.weight"] = torch.zeros(2)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing shard": (lambda folder: (folder / SHARD).unlink(), f"shard {SHARD} missing"),
    "truncated safetensors": (truncate, f"{SHARD} is truncated or not a safetensors file"),
    "empty shard": (rewrite(SHARD, b""), f"{SHARD} is truncated or not a safetensors file"),
    "wrong dtype": (edit_shard(to_float64), "is stored as F64; supported are BF16, F16, F32"),
    "missing tensor": (edit_shard(drop_one), "lacks tensor model.layers"),
    "unknown tensor": (edit_shard(add_one), "tensor model.layers.0.attention.rotary.weight"),
    "no weights": (
        lambda folder: [path.unlink() for path in folder.glob("model*")] and None,
        "holds no weights; download the safetensors files",
    ),
    "damaged index": (rewrite("model.safetensors.index.json", b"{"), "cannot be read as JSON"),
    "index without map": (rewrite("model.safetensors.index.json", b"{}"), "has no weight_map"),
    "tokenizer of another model": (edit_config(vocab_size=100), "ids up to 102, but the model's vocabulary"),
    "damaged tokenizer": (rewrite("tokenizer.json", b"{}"), "tokenizer.json cannot be read"),
    "damaged tokenizer settings": (rewrite("tokenizer_config.json", b"["), "cannot be read as JSON"),
    "EOS outside": (edit_config(eos_token_id=500), "EOS id 500 is outside the vocabulary of 112"),
    "EOS that is not a number": (edit_config(eos_token_id="end"), "eos_token_id"),
    "mask that is not a number": (edit_config(mask_token_id="[M]"), "mask_token_id"),
    "unsupported activation": (edit_config(hidden_act="gelu"), "hidden_act='gelu' is not supported"),
    "unsupported scaling": (edit_config(rope_scaling={"type": "yarn", "factor": 4}), "rope type 'yarn'"),
    "size that is not a number": (edit_config(hidden_size="wide"), "hidden_size='wide' must be an integer"),
    "sizes of another model": (edit_config(num_hidden_layers=4), "lacks tensors model.layers.3"),
    "widths of another model": (edit_config(moe_intermediate_size=16), "config.json wants"),
    "another family": (edit_config(model_type="mamba", architectures=None), "belongs to no known family"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "damaged config": (rewrite("config.json", b"\xff"), "config.json"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_one_line(
    make_checkpoint: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder, _ = make_checkpoint(num_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2)
    damage, words = DAMAGE[kind]
    damage(folder)
    code = generate(folder, tmp_path / "run")
    error = capsys.readouterr().err
    assert code == 2, error
    assert words in error
    assert error.startswith("orderlens: ")
    assert error.strip().count("\n") == 0
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "abacus"], "device 'abacus' is unknown"),
        (["--dtype", "int3"], "dtype 'int3' is unknown"),
        (["--block-size", "0"], "--block-size 0 must be at least 1"),
        (["--block-size", "99999"], "block_size=99999 must be between 1 and 512"),
        (["--max-new-tokens", "600"], "8 prompt + 600 tokens need 608 positions"),
    ],
)
def test_bad_options_are_one_line(
    checkpoint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert generate(checkpoint[0], tmp_path / "run", "Hi there", *options) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.strip().count("\n") == 0


def test_a_prompt_longer_than_the_context(
    make_checkpoint: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published context, and one token more than it holds."""
    folder, _ = make_checkpoint(max_position_embeddings=32768)
    assert generate(folder, tmp_path / "run", "x" * 32769) == 2
    error = capsys.readouterr().err
    assert "sample 'a': 32769 prompt + 4 tokens need 32800 positions" in error
    assert "has 32768; shorten prompt or target" in error
    assert error.strip().count("\n") == 0


def test_weights_that_are_not_numbers(
    make_checkpoint: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = make_checkpoint()
    edit_shard(lambda tensors: [tensor.fill_(torch.nan) for tensor in tensors.values()] and None)(folder)
    assert generate(folder, tmp_path / "run") == 1
    error = capsys.readouterr().err
    assert "NaN" in error
    assert error.strip().count("\n") == 0


def small_pool(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """Let no cache tensor have more than ``pages`` pages, as a full device would."""
    original = torch.zeros

    def zeros(shape: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(shape, tuple) and len(shape) == 4 and shape[0] > pages:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")
        return original(shape, *rest, **options)

    monkeypatch.setattr(torch, "zeros", zeros)


def test_a_cache_that_cannot_grow_costs_nothing(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """19 pages to hand out; 12 chains with up to 3 pages each, prompts shared, need 28."""
    samples = [ol.Sample(f"s{i}", [i + 1] * (60 + i)) for i in range(6)]
    wanted = {"max_new_tokens": 40, "temperature": 0.7, "stop_at_eos": False}
    whole = ol.generate(load_llada2(checkpoint[0], device="cpu"), samples, "max-prob,random", **wanted)
    cramped = load_llada2(checkpoint[0], device="cpu")
    monkeypatch.setattr(cramped, "suggested_batch", lambda _: 512, raising=False)
    cramped.engine.pool._first_pages = 20
    cramped.release_memory()
    small_pool(monkeypatch, 20)
    run = ol.generate(cramped, samples, "max-prob,random", **wanted)
    assert cramped.engine.pool.n_pages == 20
    assert caplog.messages == [
        "out of memory with 12 sequences per batch; retrying with 6, no results are lost"
    ]
    found, expected = (one.reveals().to_pandas() for one in (run, whole))
    same = ["sample_id", "order", "step", "position", "token_id"]
    assert found[same].equals(expected[same])
    assert (found.logq - expected.logq).abs().max() < 1e-4


def test_one_sequence_beyond_the_cache(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_llada2(checkpoint[0], device="cpu")
    model.engine.pool._first_pages = 4
    small_pool(monkeypatch, 4)
    model.release_memory()
    assert model.engine.pool.n_pages == 4
    with pytest.raises(DeviceMemoryError, match=r"sample 'long' .*even alone.*cached tokens") as caught:
        ol.generate(model, [ol.Sample("long", [1] * 100)], "max-prob", max_new_tokens=40)
    assert "\n" not in str(caught.value)


def test_weights_larger_than_the_gpu(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check before loading, with a GPU that has 1 kB left."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1024, 2048))
    values = json.loads((checkpoint[0] / "config.json").read_text())
    config = parse_config(values)
    with pytest.raises(
        ModelLoadError, match=r"the weights need 0\.0 GB on cuda:0, more than its free memory"
    ):
        expert_place("auto", config, torch.device("cuda:0"), torch.float32)
    assert expert_place("host", config, torch.device("cuda:0"), torch.float32) == "host"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (141e9, 141e9))  # flash on one H200
    with pytest.raises(ModelLoadError, match=r"need 205\.\d GB on cuda:0, .*One GPU is too small") as caught:
        expert_place("auto", FLASH, torch.device("cuda:0"), torch.bfloat16)
    assert "\n" not in str(caught.value)


def test_experts_never_exist_twice(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a layer's experts are stacked, memory holds at most two experts' matrices more than the stack.

    Layers load side by side, so the count is kept per layer: how many of them overlap is the scheduler's.
    """
    import weakref

    alive: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    original = Checkpoint.tensor

    def tracked(self: Checkpoint, name: str) -> Any:
        copy = original(self, name).clone()
        layer, is_expert, _ = name.partition(".mlp.experts.")
        if is_expert:
            alive[layer] += copy.nbytes
            peak[layer] = max(peak[layer], alive[layer])
            weakref.finalize(copy, alive.subtract, {layer: copy.nbytes})
        return copy

    monkeypatch.setattr(Checkpoint, "tensor", tracked)
    load_llada2(checkpoint[0], device="cpu", experts="device")
    one_expert = 3 * 32 * 32 * 4
    assert peak
    assert all(one_expert <= most <= 2 * one_expert for most in peak.values()), peak
    assert not any(alive.values()), alive


def test_the_hub_cache_is_read(
    checkpoint: Any, model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Blobs and links as the hub's client lays them out; offline, without a copy."""
    pytest.importorskip("huggingface_hub")
    commit, repo = "0123456789abcdef0123456789abcdef01234567", tmp_path / "models--org--LLaDA2.1-mini"
    snapshot = repo / "snapshots" / commit
    for place in (repo / "refs", repo / "blobs", snapshot):
        place.mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    for number, path in enumerate(sorted(checkpoint[0].iterdir())):
        (repo / "blobs" / str(number)).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(repo / "blobs" / str(number))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    loaded = load_model("hf:org/LLaDA2.1-mini", device="cpu")
    assert loaded.name == "hf:org/LLaDA2.1-mini"
    tokens = [3, 1, 4, 1, 5, 99, 99]
    assert (loaded.log_probs(tokens) == model.log_probs(tokens)).all()
