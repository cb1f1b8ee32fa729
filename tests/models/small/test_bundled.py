"""The weights that ship: their size, and what they have learnt."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import orderlens as ol  # noqa: E402
from orderlens.common.rng import keyed_generator  # noqa: E402
from orderlens.models.evaluators.small import SmallEvaluator, load_tiny_evaluator  # noqa: E402
from orderlens.models.loading import load_model  # noqa: E402
from orderlens.models.small.folder import bundled_folder, read_folder  # noqa: E402
from orderlens.store.reader import Run  # noqa: E402
from orderlens.tasks.bundled import frozen_items  # noqa: E402
from orderlens.tasks.graders import last_named  # noqa: E402
from orderlens.texts.loading import SplitRule, load_data  # noqa: E402
from orderlens.texts.samples import Sample  # noqa: E402
from orderlens.texts.sources import sample_rows  # noqa: E402

MAX_BYTES = {"tiny": 27_000_000, "tiny-ar": 13_000_000}
FORCED_NATS = (-4.270, -5.092)
"""log P/n of 32 tokens after 32 of prompt, first two passages, forced order, float32 on a CPU."""


@pytest.fixture(scope="module")
def passages() -> list[Sample]:
    tokenizer = load_model("tiny").tokenizer
    return list(load_data("passages", tokenizer, SplitRule(32, 32), limit=2).samples)


@pytest.fixture(scope="module")
def scored(passages: list[Sample]) -> Run:
    return ol.score("tiny", passages, ["forced-ar", "oracle-min-q"])


@pytest.fixture(scope="module")
def evaluator() -> SmallEvaluator:
    return load_tiny_evaluator()


@pytest.mark.parametrize("name", MAX_BYTES)
def test_files_are_whole_small_and_load_in_float32(name: str) -> None:
    folder = bundled_folder(name)
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    size = (folder / "model.safetensors").stat().st_size
    assert size == figures["bytes"] <= MAX_BYTES[name]
    assert (folder / "README.md").is_file()
    state = torch.random.get_rng_state()
    loaded = read_folder(bundled_folder(name))
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


def answered(task: str, n: int, max_new_tokens: int) -> list[tuple[dict[str, Any], str]]:
    """The first ``n`` test items of level 1 with the model's greedy left-to-right responses."""
    tasks = [item for item in frozen_items(task) if item["level"] == 1][:n]
    prompts = [Sample(id=item["id"], prompt=item["prompt"]) for item in tasks]
    run = ol.generate("tiny", prompts, ["forced-ar"], max_new_tokens=max_new_tokens)
    texts = {row["sample_id"]: row["text"] for row in run.outputs().to_arrow().to_pylist()}
    return [(item, texts[item["id"]]) for item in tasks]


@pytest.mark.slow
def test_most_easy_word_problems_are_solved() -> None:
    verdicts = [ol.tasks.grade("arith", item, text) for item, text in answered("arith", 12, 48)]
    assert sum(bool(verdict.correct) for verdict in verdicts) >= 8  # 84 % over 400 items


@pytest.mark.slow
def test_the_letter_given_is_that_of_the_option_named() -> None:
    pairs = answered("choice", 8, 80)
    given = [ol.tasks.grade("choice", item, text).extracted for item, text in pairs]
    named = [last_named(text, item["options"]) for item, text in pairs]
    fits = [place is not None and letter == "ABCD"[place] for letter, place in zip(given, named, strict=True)]
    assert sum(fits) >= 7  # 99 % over 400 items; by chance a quarter


def test_evaluator_prefers_passages_to_their_shuffled_words(evaluator: SmallEvaluator) -> None:
    texts = [str(row["text"]) for row in list(sample_rows("passages"))[:4]]
    for index, text in enumerate(texts):
        words = text.split()
        mixed = " ".join(keyed_generator(0, "shuffle", index).permutation(words))
        real, shuffled = (values.mean() for values in evaluator.token_logprobs([("", text), ("", mixed)]))
        assert real > shuffled + 1


def test_evaluator_does_not_depend_on_the_batch(evaluator: SmallEvaluator) -> None:
    pairs = [
        ("The old bridge", " reopened on Saturday morning."),
        ("", "A"),
        ("Rain fell", " all night long"),
    ]
    together = evaluator.token_logprobs(pairs)
    for pair, values in zip(pairs, together, strict=True):
        assert np.allclose(evaluator.token_logprobs([pair])[0], values, rtol=0, atol=1e-4)
