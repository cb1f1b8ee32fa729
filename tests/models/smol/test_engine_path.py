"""smol and tiny on the shared engine agree with the plain path: numbers, roles, digest and chat template."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import orderlens as ol  # noqa: E402
from orderlens.models.families import small as fast  # noqa: E402
from orderlens.models.files.roles import TokenRoles  # noqa: E402
from orderlens.models.protocol import LoadOptions  # noqa: E402
from orderlens.models.small.folder import bundled_folder, read_folder  # noqa: E402
from orderlens.models.smol.adapter import load_adapter  # noqa: E402
from orderlens.models.smol.llama import GgufFile  # noqa: E402
from orderlens.models.smol.model import build, merged  # noqa: E402
from orderlens.testing.models import write_small  # noqa: E402

ORDERS = ["forced-ar", "random:1", "max-prob"]
SAMPLES = [
    ol.Sample("a", "hello world, hello", " hello world, hello again and again"),
    ol.Sample(
        "b", "it's", " a much longer text that goes on over the end of its first block of tokens, on and on"
    ),
]


@pytest.fixture(params=["smol", "tiny"])
def pair(request, small_base, small_adapter):
    """The plain model and, on the CPU, the model on the engine."""
    if request.param == "tiny":
        plain, network = ol.load_model("tiny", device="cpu"), read_folder(bundled_folder("tiny")).network
    else:
        plain = build(small_base, small_adapter, "0" * 64, LoadOptions(device="cpu"))
        network = merged(GgufFile(small_base), load_adapter(small_adapter), small_adapter)
    roles = TokenRoles(plain.mask_id, plain.eos_ids, plain.special_ids, plain.vocab_size)
    quick = fast.fast_model(
        network,
        torch.device("cpu"),
        torch.float32,
        plain.name,
        roles,
        plain.tokenizer,
        plain.digest,
        plain.chat,
    )
    return plain, quick


def test_both_paths_score_alike(pair):
    tables = [ol.score(model, SAMPLES, ORDERS).reveals().to_pandas() for model in pair]
    first, second = (table.sort_values(["sample_id", "order", "step"]) for table in tables)
    assert (first["position"].to_numpy() == second["position"].to_numpy()).all()
    assert np.allclose(first["logq"], second["logq"], atol=1e-4)
    assert np.allclose(first["entropy"], second["entropy"], atol=1e-4)


def test_both_paths_write_the_same_texts(pair):
    runs = [ol.generate(model, ["hello", "it's a"], ORDERS, max_new_tokens=40) for model in pair]
    first, second = (run.outputs().to_pandas() for run in runs)
    assert first["text"].tolist() == second["text"].tolist()


def test_roles_digest_and_chat_are_the_same(pair):
    plain, quick = pair
    for name in (
        "name",
        "block_size",
        "mask_id",
        "eos_ids",
        "special_ids",
        "vocab_size",
        "attention",
        "digest",
    ):
        assert getattr(plain, name) == getattr(quick, name), name
    assert quick.with_block_size(8).block_size == 8
    assert quick.with_block_size(8).chat is plain.chat
    assert quick.with_dtype("bfloat16").digest == plain.with_dtype("bfloat16").digest
    tokens = plain.tokenizer.encode("hello world")
    canvas = [*tokens, plain.mask_id, plain.mask_id]
    assert np.allclose(quick.log_probs(canvas)[:, 17:], plain.log_probs(canvas)[:, 17:], atol=1e-5)


def test_weights_are_shared_and_not_copied(small_base, small_adapter):
    network = merged(GgufFile(small_base), load_adapter(small_adapter), small_adapter)
    weights = fast.dense_weights(network)
    assert weights.unembed_VC.data_ptr() == network.embedding.weight.data_ptr()
    assert weights.layers[1].qkv_OC.data_ptr() == network.layers[1].attention.qkv.weight.data_ptr()


@pytest.mark.parametrize(
    ("device", "dtype", "fits"),
    [("cpu", "bfloat16", False), ("cuda", "float32", False), ("cuda", "bfloat16", True)],
)
def test_the_engine_is_for_half_precision_on_cuda(monkeypatch, device, dtype, fits):
    monkeypatch.setattr(fast, "runs_kernels", lambda device: device.type == "cuda")
    assert fast.runs_fast(torch.device(device), getattr(torch, dtype)) is fits
    monkeypatch.setattr(fast, "runs_kernels", lambda _: False)
    assert not fast.runs_fast(torch.device(device), getattr(torch, dtype))


@pytest.mark.parametrize(("attention", "kind"), [("block-causal", "FastModel"), ("full", "TransformerModel")])
def test_only_block_causal_folders_use_the_engine(tmp_path, monkeypatch, attention, kind):
    write_small(tmp_path, attention=attention)
    assert type(ol.load_model(tmp_path, device="cpu")).__name__ == "TransformerModel"
    monkeypatch.setattr(fast, "runs_fast", lambda *_: True)
    model = ol.load_model(tmp_path, device="cpu")
    assert type(model).__name__ == kind
    assert model.attention == attention
