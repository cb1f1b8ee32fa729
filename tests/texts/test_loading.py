"""From rows to samples: what is accepted, what is left out and said, and one clear line for what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import orderlens as ol
from orderlens.errors import DataFileError, UserInputError
from orderlens.models.files.tokenizer import CharacterTokenizer
from orderlens.texts.loading import SplitRule, describe, load_data
from orderlens.texts.samples import encode_samples
from orderlens.texts.sources import sample_rows

ROWS = [{"id": "one", "text": "a" * 12}, {"prompt": "ab", "target": "cd"}, {"id": 7, "text": "b" * 3}]
CHARACTERS = CharacterTokenizer()


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def jsonl(rows):
    return "\n".join(json.dumps(row) for row in rows)


def test_texts_are_split_and_short_ones_counted(tmp_path):
    source = write(tmp_path, "d.jsonl", jsonl([*ROWS, {"text": "  "}]))
    loaded = load_data(source, CHARACTERS, SplitRule(4, 6))
    assert [(sample.id, len(sample.prompt), len(sample.target)) for sample in loaded] == [
        ("one", 4, 6),
        ("1", 2, 2),
    ]
    assert (loaded.n_rows, loaded.left_out) == (4, {"too short": 1, "empty": 1})
    short = load_data(source, CHARACTERS, SplitRule(1, 6, allow_short=True))
    assert [len(sample.target) for sample in short] == [6, 2, 2]


def test_what_was_left_out_is_said(tmp_path):
    source = write(tmp_path, "d.jsonl", jsonl([*ROWS, {"text": ""}]))
    loaded = load_data(source, CHARACTERS, SplitRule(4, 6))
    (line,) = describe(loaded.record() | {"n_samples": len(loaded)})
    assert line.endswith(
        "2 of 4 rows used; left out: 1 too short (fewer than 4 + 6 tokens: "
        "--prefix-tokens, --target-tokens, --allow-short), 1 empty"
    )
    whole = load_data(source, CHARACTERS, SplitRule(0, 0, allow_short=True), limit=2)
    assert describe(whole.record() | {"n_samples": 2}) == [f"data: {source}, 2 of 2 rows used"]
    assert describe({"digest": "of samples from Python"}) == []


def test_the_docs_show_the_lines_as_they_are_printed():
    page = Path(__file__).parents[2].joinpath("docs", "your-data.md").read_text(encoding="utf-8")
    record = {"source": "my.csv", "n_samples": 5, "n_rows": 20, "left_out": {"too short": 15}}
    record |= {"prefix_tokens": 32, "target_tokens": 128, "split": "none", "lines": 12, "paragraphs": 4}
    assert "\n".join(describe(record)) in page


def test_a_text_file_is_one_text_and_says_so(tmp_path):
    source = write(tmp_path, "story.txt", "hello world\nand more\n\nthe end")
    loaded = load_data(source, CHARACTERS, SplitRule(4, 10))
    assert [(sample.id, len(sample.target)) for sample in loaded] == [("story", 10)]
    lines = describe(loaded.record() | {"n_samples": 1})
    assert lines[1] == (
        "the whole file was read as one text (it has 2 paragraphs and 3 lines; "
        "--split paragraphs or --split lines splits it)"
    )
    cut = load_data(source, CHARACTERS, SplitRule(2, 4, split="lines"))
    assert [sample.id for sample in cut] == ["story-0", "story-1", "story-2"]
    assert describe(cut.record() | {"n_samples": 3})[1] == (
        "the file was read as one text per line (--split)"
    )


def test_allow_short_never_switches_itself_on(tmp_path):
    source = write(tmp_path, "story.txt", "hello world")
    with pytest.raises(DataFileError, match=r"none of 1 rows has 4 \+ 100 tokens \(the longest has 11\)"):
        load_data(source, CHARACTERS, SplitRule(4, 100))
    assert len(load_data(source, CHARACTERS, SplitRule(4, 100, allow_short=True))[0].target) == 7
    with pytest.raises(DataFileError) as caught:
        load_data(source, CHARACTERS, SplitRule(50, 100, allow_short=True))
    assert "--allow-short" not in str(caught.value)


def test_prompts_of_a_text_need_only_the_prefix(tmp_path):
    source = write(tmp_path, "d.jsonl", jsonl([{"text": "abcd"}, {"text": "abc"}]))
    assert [sample.prompt for sample in load_data(source, CHARACTERS, SplitRule(4, 0))] == [
        CHARACTERS.encode("abcd")
    ]
    short = load_data(source, CHARACTERS, SplitRule(4, 0, allow_short=True))
    assert [len(sample.prompt) for sample in short] == [4, 3]


def test_choice_by_hash_ignores_the_order_of_rows(tmp_path):
    rows = [{"id": f"r{i}", "text": "x" * 20} for i in range(10)]
    rule = SplitRule(4, 4)
    one = load_data(write(tmp_path, "a.jsonl", jsonl(rows)), CHARACTERS, rule, limit=4, choose_by_hash=True)
    two = load_data(
        write(tmp_path, "b.jsonl", jsonl(rows[::-1])), CHARACTERS, rule, limit=4, choose_by_hash=True
    )
    assert [x.id for x in one] == [x.id for x in two] != ["r0", "r1", "r2", "r3"]


def test_bundled_passages_are_a_source():
    rows = list(sample_rows("passages"))
    assert len(rows) >= 120
    assert all(len(row["text"].split()) >= 180 for row in rows)


def test_csv_rows_with_empty_cells(tmp_path):
    source = write(tmp_path, "a.csv", 'id,prompt,target,text\n,"Q: 1+1?", 2,\n,,7,\nx,,,abcdef\n')
    loaded = load_data(source, CHARACTERS, SplitRule(2, 3))
    assert [(sample.id, sample.prompt, sample.target) for sample in loaded][:2] == [
        ("0", "Q: 1+1?", " 2"),
        ("1", "", "7"),
    ]
    assert (loaded[2].id, len(loaded[2].prompt), len(loaded[2].target)) == ("x", 2, 3)


def test_suffixes_and_templates_are_passed_on(tmp_path):
    rows = [{"prompt": "a", "target": "b", "suffix": "c"}, {"template": "Once [[2]] end", "suffix": None}]
    first, second = load_data(write(tmp_path, "a.jsonl", jsonl(rows)), None, SplitRule())
    assert (first.prompt, first.target, first.suffix, first.template) == ("a", "b", "c", None)
    assert (second.prompt, second.suffix, second.template) == ("", None, "Once [[2]] end")
    run = ol.generate("hmm", [second], "forced-ar", block_size=4)
    assert run.reveals().to_pandas().position.tolist() == [5, 6]


def test_token_ids_from_parquet(tmp_path):
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"prompt": [[1, 2]], "target": [[3]]}), path)
    assert load_data(str(path), None, SplitRule())[0].prompt == [1, 2]
    pq.write_table(pa.table({"prompt": [[1.0, 2.0]], "target": [[3]]}), path)
    with pytest.raises(DataFileError, match=r"row 1: 'prompt' contains 1\.0; token ids are whole numbers"):
        load_data(str(path), None, SplitRule())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"txt": "x"}', r"row 1: needs 'text', or 'prompt' \(and 'target'\); it has txt"),
        ('{"text": 5}', "row 1: 'text' must be text, not 5"),
        ('{"prompt": "x", "target": 3}', "'target' must be text or a list of token ids, not 3"),
        ('{"prompt": "x", "suffix": {}}', "'suffix' must be text"),
        ('{"text": "abcdefgh", "target": "x"}', "'target' needs a 'prompt', which the row lacks"),
        ('{"template": 3}', "'template' must be text with holes"),
        ('{"template": "a [[2]] b", "prompt": "c"}', "without a 'prompt'"),
        ('{"prompt": [1, 2.5]}', r"'prompt' contains 2\.5; token ids are whole numbers"),
        ('{"prompt": [1, NaN]}', "'prompt' contains nan"),
        ('{"prompt": [true]}', "'prompt' contains True"),
        ('{"prompt": ["a"]}', "'prompt' contains 'a'"),
        ('{"prompt": [-1]}', "'prompt' contains -1; token ids are from 0 to"),
        ('{"prompt": [99999999999999999999999]}', "contains 99999999999999999999; token ids are from"),
        ('{"text": "abcdefgh", "id": ["a"]}', "'id' must be a text or a number"),
        ('{"text": "abcdefgh", "id": "' + "i" * 600 + '"}', "'id' is longer than 512 characters"),
        ('{"text": "abcdefgh", "id": "a\\u0000"}', "or contains a NUL"),
        ('{"text": "abcdefgh", "id": 1}\n{"text": "abcdefgh", "id": "1"}', "row 2: the id '1' occurs twice"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    with pytest.raises(DataFileError, match=message) as caught:
        load_data(write(tmp_path, "a.jsonl", row), CHARACTERS, SplitRule(2, 2))
    assert "\n" not in str(caught.value)


def test_huge_ids_are_names_like_others(tmp_path):
    source = write(tmp_path, "a.jsonl", '{"text": "abcdefgh", "id": 123456789012345678901234567890}')
    assert load_data(source, CHARACTERS, SplitRule(2, 2))[0].id == "123456789012345678901234567890"


def test_missing_file_suggests_a_built_in_name():
    with pytest.raises(DataFileError, match=r"'passage' does not exist; did you mean 'passages'\?"):
        list(sample_rows("passage"))


@pytest.mark.parametrize("source", ["", "a" * 3000, "no\0thing", "~nobody-of-this-name/x"])
def test_absurd_names_are_files_that_do_not_exist(source):
    with pytest.raises(DataFileError, match=r"does not exist \(built-in: passages, c4"):
        list(sample_rows(source))


@pytest.mark.parametrize("source", [".", "./", "..", "sub", "sub.jsonl"])
def test_a_folder_is_called_one_and_what_is_expected_is_said(source, tmp_path, monkeypatch):
    here = tmp_path / "here"
    for name in ("sub", "sub.jsonl"):
        (here / name).mkdir(parents=True)
    monkeypatch.chdir(here)
    wanted = r" is a folder; give a built-in name \(passages, c4\) or a file: \.jsonl"
    with pytest.raises(DataFileError, match=f"'{re.escape(source)}'{wanted}"):
        list(sample_rows(source))


def test_c4_offline_says_what_to_do(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataFileError, match=r"allenai/c4@1588ec4.* is not in the local cache.*with --data"):
        list(sample_rows("c4"))


def test_the_front_door_takes_a_path_and_a_model(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("text\nhello world\nhi\n")
    model = ol.load_model("hmm")
    found = ol.load_samples(path, model, prefix_tokens=4, target_tokens=5)
    assert found == ol.load_samples(str(path), "hmm", prefix_tokens=4, target_tokens=5)
    assert (len(found), found.left_out) == (1, {"too short": 1})
    run = ol.score(model, found, "forced-ar", block_size=4)
    assert run.samples().to_pandas().n.tolist() == [5]
    assert run.spec["data"]["left_out"] == {"too short": 1}
    with pytest.raises(UserInputError, match="also give the model"):
        ol.load_samples(path)
    for wrong in ({"limit": 0}, {"prefix_tokens": -1}, {"split": "words"}):
        with pytest.raises(UserInputError, match=next(iter(wrong))):
            ol.load_samples(path, model, **wrong)


SENTENCES = [{"id": f"s{i}", "text": "the cat sat on the mat"[: 12 + i]} for i in range(10)]


@pytest.mark.parametrize(("target", "sizes"), [(None, (4, 8)), (0, (12, None))])
def test_default_lengths_fit_short_texts_and_say_so(tmp_path, target, sizes):
    source = write(tmp_path, "short.jsonl", jsonl(SENTENCES))
    loaded = ol.load_samples(source, "hmm", target_tokens=target)
    assert len(loaded) == 10
    first = loaded[0]
    assert (len(first.prompt), first.target and len(first.target)) == sizes
    text = CHARACTERS.encode(SENTENCES[-1]["text"])
    assert [*loaded[-1].prompt, *(loaded[-1].target or ())] == text
    assert "every text is shorter than 32" in repr(loaded)


def test_lengths_that_were_given_are_not_fitted(tmp_path):
    source = write(tmp_path, "short.jsonl", jsonl(SENTENCES))
    for lengths in ({"prefix_tokens": 32}, {"target_tokens": 128}):
        with pytest.raises(DataFileError) as caught:
            ol.load_samples(source, "hmm", **lengths)
        numbers = re.findall(r"--(prefix|target)-tokens (\d+)", str(caught.value))
        named = {f"{name}_tokens": int(value) for name, value in numbers}
        assert len(ol.load_samples(source, "hmm", **named, allow_short=True)) == 10


def test_one_long_text_keeps_the_default_lengths(tmp_path):
    source = write(tmp_path, "mixed.jsonl", jsonl([*SENTENCES, {"text": "a" * 200}]))
    loaded = ol.load_samples(source, "hmm")
    assert [(len(sample.prompt), len(sample.target)) for sample in loaded] == [(32, 128)]
    assert loaded.n_too_short == 10


def test_characters_without_a_token_are_counted(tmp_path, caplog):
    source = write(tmp_path, "d.jsonl", jsonl([{"text": "Caf\u00e9 \u2013 why? " * 8}]))
    loaded = ol.load_samples(source, "hmm")
    assert loaded.record()["n_unknown"] == 16
    assert "the tokenizer cannot represent 16 pieces of the texts" in repr(loaded)
    plain = ol.load_samples(write(tmp_path, "e.jsonl", jsonl([{"text": "WHY? " * 40}])), "hmm")
    assert "n_unknown" not in plain.record()


@pytest.mark.parametrize(
    ("sample", "count"),
    [
        (ol.Sample("a", "\u00e4b", "c\u00e4\u00e4"), 3),
        (ol.Sample("a", "what?", "d"), 0),
        (ol.Sample("a", "", template="\u00e4 [[3]] b"), 1),
    ],
)
def test_given_texts_are_counted_too(sample, count, caplog):
    encode_samples(ol.load_model("hmm"), [sample], need_target=sample.template is None)
    said = [record.getMessage() for record in caplog.records]
    pieces = f"{count} piece{'s' if count > 1 else ''} of the texts"
    assert len(said) == (1 if count else 0)
    assert not count or pieces in said[0]


@pytest.mark.parametrize("value", [b"x", 3, bytearray(b"x")])
def test_a_sample_refuses_what_is_neither_text_nor_tokens(value):
    with pytest.raises(UserInputError, match="prompt must be text or a list of token ids, not"):
        ol.Sample(3, value)
    with pytest.raises(UserInputError, match="target must be text"):
        ol.Sample("a", "x", value)
    with pytest.raises(UserInputError, match="the id must be text or a whole number"):
        ol.Sample(b"a", "x")
