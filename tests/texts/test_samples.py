"""Samples as they are given, as token ids, and as keys that tell every two of them apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orderlens.errors import UserInputError
from orderlens.models.files.tokenizer import CharacterTokenizer
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample, Sample, encode_samples, in_chat

TOKENIZER = CharacterTokenizer()
SIZE = TOKENIZER.mask_id + 1


@pytest.fixture(scope="module")
def model():
    return StubModel(np.zeros(SIZE - 1), tokenizer=TOKENIZER, eos_ids=[TOKENIZER.eos_id], name="letters")


def encoded(model, sample, *, need_target=False):
    return encode_samples(model, [sample], need_target=need_target)[0]


def test_texts_become_tokens_and_tokens_stay(model):
    one = encoded(model, Sample("a", "ab", "cd", "ef"), need_target=True)
    other = encoded(
        model, Sample("a", *(TOKENIZER.encode(text) for text in ("ab", "cd", "ef"))), need_target=True
    )
    for part in ("prompt", "target", "suffix"):
        assert getattr(one, part).tolist() == getattr(other, part).tolist()
        assert getattr(one, part).dtype == np.int64
    assert one.content_key() == other.content_key()


def test_a_target_is_ignored_where_nothing_is_scored(model):
    assert len(encoded(model, Sample("a", "ab", "cd")).target) == 0
    assert (
        encoded(model, Sample("a", "ab")).content_key()
        == encoded(model, Sample("a", "ab", "z")).content_key()
    )


def test_strings_are_numbered_and_an_empty_prompt_is_one(model):
    found = encode_samples(model, ["", "ab"], need_target=False)
    assert [sample.id for sample in found] == ["0", "1"]
    assert [len(sample.prompt) for sample in found] == [0, 2]


def test_a_template_is_cut_at_its_holes(model):
    one = encoded(model, Sample("a", "", template="ab[[2]]c[[1]][[3]]de"))
    mask = model.mask_id
    assert one.prompt.tolist() == TOKENIZER.encode("ab")
    assert one.template.tolist() == [mask, mask, *TOKENIZER.encode("c"), mask, mask, mask, mask]
    assert one.suffix.tolist() == TOKENIZER.encode("de")
    first = encoded(model, Sample("a", "", template="[[2]]"))
    assert (len(first.prompt), first.template.tolist(), len(first.suffix)) == (0, [mask, mask], 0)


@pytest.mark.parametrize(
    ("sample", "need_target", "message"),
    [
        (Sample("a", "x"), True, "sample 'a' has an empty target; to score it, add at least one token"),
        (Sample("a", "x", ""), True, "sample 'a' has an empty target"),
        (
            Sample("a", "", template="x[[2]]"),
            True,
            "has a template, which only generate can fill; to score, give",
        ),
        (
            Sample("a", "x", template="[[2]]"),
            False,
            "a template replaces prompt and suffix; leave them empty",
        ),
        (Sample("a", "", suffix="x", template="[[2]]"), False, "leave them empty"),
        (Sample("a", "", template="no hole"), False, r"needs holes such as \[\[8\]\], each of at least one"),
        (Sample("a", "", template="[[0]]"), False, "each of at least one token"),
        (Sample("a", "", template="[[1234567]]"), False, "a hole has at most 999,999 tokens"),
        (
            Sample("a", [1, SIZE]),
            False,
            rf"prompt token id {SIZE} is outside the vocabulary \(0…{SIZE - 1}\)",
        ),
        (Sample("a", [-1]), False, "prompt token id -1 is outside the vocabulary"),
        (Sample("a", [1], [2, SIZE - 1]), True, f"target token id {SIZE - 1} is the mask id"),
        (Sample("a", [1], [2], [SIZE - 1]), True, f"suffix token id {SIZE - 1} is the mask id"),
        (Sample("a", [1.5]), False, "prompt must be text or a list of whole token ids, not 1.5"),
        (Sample("a", [True]), False, "prompt must be text or a list of whole token ids, not True"),
        (Sample("a", [[1], [2]]), False, "prompt must be text or a list of whole token ids"),
        (Sample("a", [[1], [2, 3]]), False, "prompt must be text or a list of whole token ids"),
        (Sample("a", ["1"]), False, "prompt must be text or a list of whole token ids"),
    ],
)
def test_mistakes_are_named_with_the_sample(model, sample, need_target, message):
    with pytest.raises(UserInputError, match=message) as caught:
        encoded(model, sample, need_target=need_target)
    assert "'a'" in str(caught.value)


def test_ids_are_unique_within_a_task(model):
    again = [Sample("a", "x"), Sample("a", "y")]
    with pytest.raises(UserInputError, match="sample id 'a' occurs twice; ids must be unique"):
        encode_samples(model, again, need_target=False)
    tasks = [Sample("a", "x", task="one"), Sample("a", "x", task="two"), Sample("a", "x")]
    assert len(encode_samples(model, tasks, need_target=False)) == 3
    with pytest.raises(UserInputError, match="no samples given; give at least one"):
        encode_samples(model, [], need_target=False)


def test_numpy_and_unsigned_ids_are_taken(model):
    given = Sample("a", np.array([1, 2], np.uint8), (3,))
    one = encoded(model, given, need_target=True)
    assert (one.prompt.tolist(), one.target.tolist()) == ([1, 2], [3])


def test_a_model_without_a_chat_template_says_so(model):
    with pytest.raises(UserInputError, match=r"letters has no chat template; leave out --chat \(chat=True\)"):
        in_chat(model, [Sample("a", "x")])


def test_every_difference_is_in_the_key():
    """The same ids spread over the parts in other ways, other names and other tasks: no two alike."""
    ids = np.arange(1, 5)
    ways = []
    for a, b, c in itertools.combinations_with_replacement(range(5), 3):
        parts = [ids[:a], ids[a:b], ids[b:c], ids[c:]]
        ways.append(EncodedSample("a", parts[0], parts[1], None, parts[2], parts[3]))
    ways += [EncodedSample("b", ids), EncodedSample("a", ids, task="t"), EncodedSample("a", ids[::-1])]
    keys = [sample.content_key() for sample in ways]
    assert len(set(keys)) == len(keys)


def test_keys_do_not_depend_on_how_numbers_are_held():
    small = EncodedSample("a", np.array([1, 2], np.int32), np.array([3], np.uint16))
    large = EncodedSample("a", np.array([1, 2]), np.array([3]))
    assert small.content_key() == large.content_key()


def test_long_samples_are_shown_short():
    shown = repr(Sample("a", "x" * 1000, list(range(1000)), task="t"))
    assert len(shown) < 140
    assert shown.startswith("Sample(id='a', prompt='xx")
    assert "suffix" not in shown
