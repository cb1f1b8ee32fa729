"""The bundled texts keep the promises of docs/your-data.md."""

import json
import re
from collections import Counter
from importlib import resources

import pytest

from orderlens.errors import UnknownNameError
from orderlens.texts.sources import KINDS, load_passages

ALL = load_passages()
SCORING = [passage for passage in ALL if passage.kind != "qa"]
QA = load_passages("qa")
RAW = resources.files("orderlens.texts").joinpath("passages.jsonl").read_bytes()


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def grams(text, n=8):
    tokens = words(text)
    return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


def test_there_are_enough_of_every_kind():
    counts = Counter(passage.kind for passage in ALL)
    assert set(counts) == set(KINDS)
    assert len(SCORING) >= 120
    assert all(counts[kind] >= 24 for kind in KINDS)
    assert len(QA) >= 30


def test_every_scoring_text_has_at_least_180_words_and_no_scoring_text_is_huge():
    lengths = {passage.id: len(passage.text.split()) for passage in SCORING}
    assert min(lengths.values()) >= 180, min(lengths, key=lengths.get)
    assert max(lengths.values()) <= 280, max(lengths, key=lengths.get)


def test_ids_titles_and_texts_are_unique():
    assert len({passage.id for passage in ALL}) == len(ALL)
    assert len({passage.title for passage in SCORING}) == len(SCORING)
    assert len({passage.text for passage in SCORING}) == len(SCORING)
    assert len({passage.prompt for passage in QA}) == len(QA)


def test_no_two_passages_share_eight_words_in_a_row():
    owner = {}
    for passage in SCORING:
        for gram in grams(passage.text):
            assert owner.setdefault(gram, passage.id) == passage.id, (owner[gram], passage.id, " ".join(gram))


def test_no_two_passages_start_alike():
    openings = Counter(" ".join(words(passage.text)[:4]) for passage in SCORING)
    assert openings.most_common(1)[0][1] == 1, openings.most_common(3)


def test_passages_are_prose_and_not_filled_templates():
    """Each passage brings words that few others use, and no passage repeats its own sentences."""
    used = Counter(word for passage in SCORING for word in set(words(passage.text)))
    for passage in SCORING:
        rare = [word for word in set(words(passage.text)) if used[word] <= 3]
        assert len(rare) >= 10, passage.id
        sentences = [s for s in re.split(r"(?<=[.?!])\s+", passage.text) if len(s.split()) > 4]
        assert len(sentences) == len(set(sentences)), passage.id


def test_the_file_is_plain_jsonl():
    text = RAW.decode("utf-8")
    assert text.isascii()
    assert text.endswith("\n")
    assert "\r" not in text
    lines = text.splitlines()
    assert len(lines) == len(ALL)
    for line in lines:
        row = json.loads(line)
        assert set(row) == (
            {"id", "kind", "prompt", "target"} if row["kind"] == "qa" else {"id", "kind", "title", "text"}
        )


@pytest.mark.parametrize("passage", SCORING, ids=lambda p: p.id)
def test_the_typography_is_clean(passage):
    assert passage.text == passage.text.strip()
    assert not re.search(r"  |\t|\n{3}| \n|\n(?=[^\n])(?<!\n\n)", passage.text), passage.id
    assert passage.text.count('"') % 2 == 0
    assert passage.text[-1] in '.?!"'
    assert not re.search(r"\b(\w+) \1\b(?<!that that)(?<!had had)", passage.text.lower()), passage.id


def test_questions_have_short_answers():
    for passage in QA:
        assert passage.prompt.startswith("Question: ")
        assert passage.prompt.endswith("\nAnswer:")
        assert re.fullmatch(r" [A-Z].*\.", passage.target)
        assert 1 <= len(passage.target.split()) <= 25
        assert not passage.text
    assert sum(len(passage.target.split()) <= 3 for passage in QA) >= 15


def test_kinds_take_turns_so_that_a_limit_gives_a_mixture():
    assert [passage.kind for passage in ALL[:5]] == ["news", "encyclopedia", "narrative", "howto", "dialogue"]
    assert Counter(passage.kind for passage in ALL[:20]) == {kind: 4 for kind in KINDS if kind != "qa"}


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_can_be_asked_for(kind):
    assert {passage.kind for passage in load_passages(kind)} == {kind}


def test_an_unknown_kind_is_named():
    with pytest.raises(UnknownNameError, match="'poem'"):
        load_passages("poem")
