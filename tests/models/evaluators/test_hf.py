"""The Hugging Face evaluator on a tiny random GPT-2 checkpoint that the test writes itself."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.metrics import load_evaluator
from orderlens.models.evaluators.hf import HFCausalEvaluator, load_hf_evaluator

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CORPUS = ["the cat sat on the mat and the dog sat on the log", "a theatre in the north", "cats and dogs"] * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(CORPUS, vocab_size=320, min_frequency=1, special_tokens=["<|endoftext|>"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    fast.save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(fast), n_positions=32, n_embd=32, n_layer=2, n_head=2)
    transformers.GPT2LMHeadModel(config).eval().save_pretrained(path, safe_serialization=True)
    return path


@pytest.fixture(scope="module")
def evaluator(folder):
    return load_evaluator(f"hf:{folder}", device="cpu")


def by_hand(evaluator, prompt, text):
    """One forward, one text, no batching: the obvious way."""
    ids = evaluator._tokenizer(prompt + text, add_special_tokens=False, return_offsets_mapping=True)
    inside = [end > len(prompt) for _, end in ids["offset_mapping"]]
    tokens = ids["input_ids"]
    if inside[0]:
        tokens, inside = [evaluator._tokenizer.bos_token_id, *tokens], [False, *inside]
    with torch.inference_mode():
        logp = evaluator._model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
    return np.array([float(logp[t - 1, tokens[t]]) for t in range(len(tokens)) if inside[t]])


PAIRS = [("the cat", " sat on the mat"), ("", "cats and dogs"), ("the dog", " sat"), ("a the", "atre in the")]


def test_batched_scores_equal_one_text_at_a_time(evaluator):
    for row, (prompt, text) in zip(evaluator.token_logprobs(PAIRS), PAIRS, strict=True):
        np.testing.assert_allclose(row, by_hand(evaluator, prompt, text), atol=1e-5)


def test_batch_size_does_not_matter(evaluator):
    small = HFCausalEvaluator(evaluator.name, evaluator._model, evaluator._tokenizer, batch_tokens=1)
    for a, b in zip(small.token_logprobs(PAIRS), evaluator.token_logprobs(PAIRS), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_token_across_the_boundary_is_scored_once(evaluator):
    joined = evaluator._tokenizer("a theatre", add_special_tokens=False)["input_ids"]
    split = evaluator._tokenizer("a the", add_special_tokens=False)["input_ids"]
    (row,) = evaluator.token_logprobs([("a the", "atre")])
    assert joined[: len(split)] != split  # the merge really crosses the boundary
    assert len(row) >= 1
    np.testing.assert_allclose(row, by_hand(evaluator, "a the", "atre"), atol=1e-5)


def test_texts_longer_than_the_context_are_scored_completely(evaluator):
    text = " ".join(["the cat sat on the mat"] * 12)
    n_tokens = len(evaluator._tokenizer(text, add_special_tokens=False)["input_ids"])
    assert n_tokens > 2 * 32
    (row,) = evaluator.token_logprobs([("", text)])
    assert len(row) == n_tokens
    assert np.isfinite(row).all()
    (head,) = evaluator.token_logprobs([("", "the cat sat on the mat the cat")])
    np.testing.assert_allclose(row[: len(head)], head, atol=1e-5)  # the first window has its whole past


def test_families_with_a_start_token_get_it_before_prompts(evaluator, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    start = ("<|endoftext|>", tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[start]
    )
    always = HFCausalEvaluator("started", evaluator._model, tokenizer)
    pairs = [("the cat", " sat"), ("", "cats")]
    started, plain = (list(item._windows(pairs, 0)) for item in (always, evaluator))
    assert started[0].ids.tolist() == [start[1], *plain[0].ids]
    assert started[1].ids.tolist() == plain[1].ids.tolist()
    assert [window.n_scored for window in started] == [window.n_scored for window in plain]


def test_nothing_to_score(evaluator):
    assert evaluator.token_logprobs([]) == []
    assert [len(row) for row in evaluator.token_logprobs([("the cat", "")])] == [0]


def test_bad_names_are_one_line(tmp_path):
    with pytest.raises(UserInputError, match="hf:ORG/NAME"):
        load_hf_evaluator("")
    with pytest.raises(ModelLoadError, match="cannot load evaluator") as error:
        load_hf_evaluator(str(tmp_path))
    assert "\n" not in str(error.value)
    with pytest.raises(
        ModelLoadError, match="evaluator 'hf:org/nothing@v1' is not in the local cache"
    ) as error:
        load_hf_evaluator("org/nothing@v1")
    assert "tiny-ar" in str(error.value)


def test_pickled_weights_are_refused(folder, tmp_path):
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="cannot load evaluator"):
        load_hf_evaluator(str(tmp_path))
