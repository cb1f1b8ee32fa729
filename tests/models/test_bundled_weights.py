"""The weights that ship: their size, what they have learnt, and that their data can be made again."""

from __future__ import annotations

import hashlib
import itertools
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import orderlens as ol  # noqa: E402
from orderlens.datafiles import SplitRule, load_samples, read_rows  # noqa: E402
from orderlens.models.bundled import bundled_folder, load_bundled  # noqa: E402
from orderlens.models.loading import load_model  # noqa: E402
from orderlens.models.tiny_ar import CausalEvaluator, load_tiny_evaluator  # noqa: E402
from orderlens.rng import keyed_generator  # noqa: E402
from orderlens.samples import Sample  # noqa: E402
from orderlens.store.reader import Run  # noqa: E402
from orderlens.tasks.bundled import items, training_documents  # noqa: E402

MAX_BYTES = {"tiny": 27_000_000, "tiny-ar": 13_000_000}
FORCED_NATS = (-4.377, -5.115)
"""log P/n of 32 tokens after 32 of prompt, first two passages, forced order, float32 on a CPU."""


@pytest.fixture(scope="module")
def passages() -> list[Sample]:
    tokenizer = load_model("tiny").tokenizer
    return list(load_samples("passages", tokenizer, SplitRule(32, 32), limit=2).samples)


@pytest.fixture(scope="module")
def scored(passages: list[Sample]) -> Run:
    return ol.score("tiny", passages, ["forced-ar", "oracle-min-q"])


@pytest.fixture(scope="module")
def evaluator() -> CausalEvaluator:
    return load_tiny_evaluator()


@pytest.mark.parametrize("name", MAX_BYTES)
def test_files_are_whole_small_and_load_in_float32(name: str) -> None:
    folder = bundled_folder(name)
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    size = (folder / "model.safetensors").stat().st_size
    assert size == figures["bytes"] <= MAX_BYTES[name]
    assert (folder / "README.md").is_file()
    state = torch.random.get_rng_state()
    loaded = load_bundled(name)
    assert torch.equal(state, torch.random.get_rng_state())
    parameters = list(loaded.network.parameters())
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in parameters)
    assert loaded.config.vocab_size == loaded.tokenizer.vocab_size == 8192


def test_both_models_share_one_tokenizer() -> None:
    first, second = ((bundled_folder(name) / "tokenizer.json").read_bytes() for name in MAX_BYTES)
    assert first == second


def test_untrained_ids_are_special_and_improbable() -> None:
    model = load_model("tiny")
    assert model.special_ids == {2, 3}
    log_probs = model.log_probs([*model.tokenizer.encode("The river runs"), *[model.mask_id] * 8])
    assert log_probs[:, [2, 3]].max() < -7


def test_forced_likelihood_is_what_it_was(scored: Run) -> None:
    frame = scored.samples().to_pandas()
    found = frame[frame["order"] == "forced-ar"]["mean"].to_numpy()
    assert found == pytest.approx(FORCED_NATS, abs=0.02)


def test_orders_disagree_far_beyond_rounding(scored: Run) -> None:
    frame = scored.samples().to_pandas().pivot_table(index="sample_id", columns="order", values="mean")
    assert (frame["forced-ar"] - frame["oracle-min-q"]).mean() > 0.05  # rounding moves log P/n by under 1e-5


def test_easy_word_problems_are_answered_with_numbers_and_some_are_right() -> None:
    tasks = items("arith", "test", 12, level=1)
    prompts = [Sample(id=item["id"], prompt=item["prompt"]) for item in tasks]
    outputs = ol.generate("tiny", prompts, ["forced-ar"], max_new_tokens=48).outputs().to_arrow()
    texts = dict(zip(outputs["sample_id"].to_pylist(), outputs["text"].to_pylist(), strict=True))
    verdicts = [ol.tasks.grade("arith", item, texts[item["id"]]) for item in tasks]
    assert all(any(letter.isdigit() for letter in text) for text in texts.values())
    assert any(verdict.correct for verdict in verdicts)


def test_evaluator_prefers_passages_to_their_shuffled_words(evaluator: CausalEvaluator) -> None:
    texts = [str(row["text"]) for row in read_rows("passages")[:4]]
    for index, text in enumerate(texts):
        words = text.split()
        mixed = " ".join(keyed_generator(0, "shuffle", index).permutation(words))
        real, shuffled = (values.mean() for values in evaluator.token_logprobs([("", text), ("", mixed)]))
        assert real > shuffled + 1


def test_evaluator_does_not_depend_on_the_batch(evaluator: CausalEvaluator) -> None:
    pairs = [
        ("The old bridge", " reopened on Saturday morning."),
        ("", "A"),
        ("Rain fell", " all night long"),
    ]
    together = evaluator.token_logprobs(pairs)
    for pair, values in zip(pairs, together, strict=True):
        assert np.allclose(evaluator.token_logprobs([pair])[0], values, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("task", "digest"), [("arith", "a80a1ad752ffdb95"), ("choice", "49e8960eef436f52")])
def test_training_documents_are_those_the_weights_were_trained_on(task: str, digest: str) -> None:
    documents = itertools.islice(training_documents(task, 0), 6000)
    assert hashlib.sha256("\0".join(documents).encode()).hexdigest()[:16] == digest
