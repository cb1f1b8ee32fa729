from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lm_eval")
pytest.importorskip("langdetect")
nltk = pytest.importorskip("nltk")

from orderlens import tasks  # noqa: E402
from orderlens.errors import DataFileError  # noqa: E402
from orderlens.tasks import ifeval, sentences  # noqa: E402

KWARGS: dict[str, dict[str, Any]] = {
    "keywords:existence": {"keywords": ["river", "boat"]},
    "keywords:frequency": {"keyword": "river", "frequency": 2, "relation": "at least"},
    "keywords:forbidden_words": {"forbidden_words": ["boat"]},
    "keywords:letter_frequency": {"letter": "r", "let_frequency": 9, "let_relation": "less than"},
    "language:response_language": {"language": "en"},
    "length_constraints:number_sentences": {"num_sentences": 3, "relation": "at least"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 2},
    "length_constraints:number_words": {"num_words": 30, "relation": "less than"},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": 2,
        "nth_paragraph": 1,
        "first_word": "the",
    },
    "detectable_content:number_placeholders": {"num_placeholders": 2},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:number_bullet_lists": {"num_bullets": 2},
    "detectable_format:constrained_response": {},
    "detectable_format:number_highlighted_sections": {"num_highlights": 1},
    "detectable_format:multiple_sections": {"section_spliter": "SECTION", "num_sections": 2},
    "detectable_format:json_format": {},
    "detectable_format:title": {},
    "combination:two_responses": {},
    "combination:repeat_prompt": {"prompt_to_repeat": "Write about a river."},
    "startend:end_checker": {"end_phrase": "That is all."},
    "change_case:capital_word_frequency": {"capital_frequency": 3, "capital_relation": "at least"},
    "change_case:english_capital": {},
    "change_case:english_lowercase": {},
    "punctuation:no_comma": {},
    "startend:quotation": {},
}
PIECES = [
    *(
        "The river runs to the sea. ",
        "Dr. Smith, who owns the boat, sleeps! ",
        "IT IS VERY COLD. ",
        "where to? ",
    ),
    *(
        "\n",
        "\n\n",
        "* point\n",
        "- dash\n",
        "[name] ",
        "*high* ",
        "**bold** ",
        "<<Title>>\n",
        "******",
        "\n***\n",
    ),
    *(
        "P.S. more",
        "SECTION 1 ",
        "SECTION 2 ",
        '"',
        "That is all.",
        "My answer is yes.",
        "Write about a river. ",
    ),
    *('{"a": 1}', "rivers ", "el perro come en la casa de mi madre. ", "，。", "[", "<<", "*"),
]
CHOSEN = [
    "The one.\n\nTwo.",
    "Write about a river. Yes.",
    "* a\n* b",
    "[a] [b]",
    "a\n***\nb",
    "a\n******\nb",
    "so " * 30,  # too long for number_words
]


def doc(*names: str) -> dict[str, Any]:
    return {"instruction_id_list": list(names), "kwargs": [KWARGS[name] for name in names]}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """lm-eval's own scorer, with the same language seed; reads the same sentence data as we do."""
    ifeval.checkers()
    from langdetect import DetectorFactory
    from lm_eval.tasks.ifeval import utils

    DetectorFactory.seed = 0
    return utils


def responses(n: int) -> Iterator[str]:
    yield from CHOSEN
    draw = random.Random(3)
    for _ in range(n):
        text = "".join(draw.choices(PIECES, k=draw.randrange(1, 9)))
        yield draw.choice([text, text, text.upper(), text.lower(), f'"{text}"', json.dumps({"t": text})])


def test_equals_lm_eval(theirs: Any, with_punkt: bool) -> None:
    """Strict and loose outcomes of every type; lm-eval's own sentence types need the trained splitter."""
    by_sentences = (ifeval._SENTENCES, ifeval._CAPITALS)
    names = [name for name in KWARGS if with_punkt or name not in by_sentences]
    both = set()
    for text in responses(40):
        verdict = tasks.grade("ifeval", doc(*names), text)
        expected = theirs.process_results({"key": 1, "prompt": "", **doc(*names)}, [text])
        assert verdict.per_instruction == expected["inst_level_strict_acc"], text
        assert verdict.per_instruction_loose == expected["inst_level_loose_acc"], text
        both |= {(name, good) for name, good in zip(names, verdict.per_instruction, strict=True)}
    assert {name for name, good in both if good} == set(names)  # every type was seen to succeed
    assert {name for name, good in both if not good} == set(names)


def test_all_types_work_without_sentence_data(without_punkt: None) -> None:
    assert not sentences.has_trained_splitter()
    verdict = tasks.grade("ifeval", doc(*KWARGS), "One. Two. Three. IT IS COLD")
    assert len(verdict.per_instruction or []) == 25
    assert "fallback splitter" in verdict.reason
    assert "could not be checked" not in verdict.reason
    both = doc(ifeval._SENTENCES, ifeval._CAPITALS)
    assert tasks.grade("ifeval", both, "It is. It was. IT WILL BE.").correct
    assert tasks.grade("ifeval", both, "It is. Mr. Smith was.").per_instruction == [False, False]


def test_fallback_is_not_mentioned_when_it_was_not_used(without_punkt: None) -> None:
    assert "fallback" not in tasks.grade("ifeval", doc("punctuation:no_comma"), "yes").reason


def test_verdict_fields() -> None:
    wanted = doc("punctuation:no_comma", "detectable_format:title")
    verdict = tasks.grade("ifeval", wanted, "Sure, here:\n<<Title>>")
    assert (verdict.correct, verdict.extracted, verdict.per_instruction) == (False, "1/2", [False, True])
    assert verdict.loose
    assert verdict.per_instruction_loose == [True, True]
    assert "punctuation:no_comma" in verdict.reason
    assert tasks.grade("ifeval", wanted, "Sure, here:\n<<Title>>", grader="loose").correct
    assert json.loads(verdict.instructions_json() or "") == {"strict": [False, True], "loose": [True, True]}
    empty = tasks.grade("ifeval", wanted, " ")
    assert empty.per_instruction == [False, False]
    assert "empty response" in empty.reason


def test_null_arguments_are_dropped() -> None:
    row = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"num_words": None, "keyword": None}]}
    assert tasks.grade("ifeval", row, "no commas").correct


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "the document: has no 'instruction_id_list'"),
        ({"key": 7, "instruction_id_list": ["a"]}, "ifeval, document '7': has no 'kwargs'"),
        ({"instruction_id_list": [], "kwargs": []}, "'instruction_id_list' is empty"),
        ({"instruction_id_list": "a", "kwargs": [{}]}, "'instruction_id_list' is not a list"),
        ({"instruction_id_list": [3], "kwargs": [{}]}, "holds an entry that is not text"),
        ({"instruction_id_list": ["a"], "kwargs": []}, "'kwargs' has 0 entries for 1 instructions"),
        ({"instruction_id_list": ["no:such"], "kwargs": [{}]}, "unknown instruction 'no:such'"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, "lacks 'keywords'"),
        ({"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "xx"}]}, "unusable"),
    ],
)
def test_unusable_documents_are_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataFileError, match=reason):
        tasks.grade("ifeval", row, "some text")


def test_an_instruction_that_fails_on_the_text_is_not_followed() -> None:
    row = {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["("]}]}
    verdict = tasks.grade("ifeval", row, "some text")
    assert not verdict.correct
    assert "could not be checked" in verdict.reason


def test_odd_letters_are_counted_as_they_are() -> None:
    row = {
        "instruction_id_list": ["keywords:letter_frequency"],
        "kwargs": [{"letter": "#", "let_frequency": 2, "let_relation": "at least"}],
    }
    assert tasks.grade("ifeval", row, "# one\n# two").correct
    assert not tasks.grade("ifeval", row, "# one").correct
    assert "random letter" in tasks.grade("ifeval", row, "# one").reason


def test_language_detection_repeats_and_leaves_no_trace() -> None:
    from langdetect import DetectorFactory

    row = {"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "es"}]}
    DetectorFactory.seed = None
    state = random.getstate()
    verdicts = {tasks.grade("ifeval", row, "es no").correct for _ in range(20)}
    assert len(verdicts) == 1
    assert DetectorFactory.seed is None
    assert random.getstate() == state


def test_deep_json_is_not_a_crash() -> None:
    verdict = tasks.grade("ifeval", doc("detectable_format:json_format"), "[" * 50_000)
    assert not verdict.correct
    assert "RecursionError" in verdict.reason


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*" \n\t\x0b*-[]<>ps.a", "p.s.", "<<a>>"]), max_size=30).map("".join))
def test_reductions_keep_the_verdict(text: str) -> None:
    """The texts that long responses are reduced to get lm-eval's verdict of the original."""
    known = ifeval.checkers().INSTRUCTION_DICT
    for name, reduce in ifeval._REDUCTIONS.items():
        for bound in range(4):
            judge = known[name](name)
            key = {
                "detectable_content:number_placeholders": "num_placeholders",
                "detectable_format:number_bullet_lists": "num_bullets",
            }.get(name)
            judge.build_description(**({key: bound} if key else KWARGS[name]))
            assert judge.check_following(reduce(text)) == judge.check_following(text), (name, text)


@pytest.mark.parametrize("name", [ifeval._SENTENCES, ifeval._CAPITALS])
def test_early_stops_keep_the_verdict(
    name: str, monkeypatch: pytest.MonkeyPatch, theirs: Any, with_punkt: bool
) -> None:
    if not with_punkt:
        pytest.skip("nltk punkt_tab is not installed")
    monkeypatch.setattr(ifeval, "LONG", 0)
    for text in responses(40):
        expected = theirs.process_results({"key": 1, "prompt": "", **doc(name)}, [text])
        assert tasks.grade("ifeval", doc(name), text).per_instruction == expected["inst_level_strict_acc"]


HOSTILE = ["[ ", "<< ", "\n", "*\n", "x.\n", "{", "שלום \u202e", "\x00\x01"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_texts_are_graded(piece: str) -> None:
    assert tasks.grade("ifeval", doc(*KWARGS), (piece * 40_000)[:40_000] + "\nx").reason


QUADRATIC = {
    "detectable_content:number_placeholders": "[ ",
    "detectable_format:title": "<< ",
    "detectable_format:number_bullet_lists": "\n",
    "detectable_content:postscript": "\n",
}


@pytest.mark.parametrize("name", ifeval._REDUCTIONS)
def test_what_a_checker_would_search_again_from_every_place_is_cut_beforehand(name: str) -> None:
    assert len(ifeval._REDUCTIONS[name](QUADRATIC[name] * 50_000)) <= 2


def test_importing_never_downloads() -> None:
    code = (
        "import sys, nltk; nltk.data.path[:] = ['/nonexistent']\n"
        "def refuse(*a, **k): raise SystemExit('tried to download')\n"
        "nltk.download = refuse\n"
        "from orderlens import tasks\n"
        "v = tasks.grade('ifeval', {'instruction_id_list': ['punctuation:no_comma'], 'kwargs': [{}]}, 'hi')\n"
        "assert v.correct and nltk.download is refuse\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_missing_packages_are_named() -> None:
    code = (
        "import sys; sys.modules['lm_eval'] = None\n"
        "from orderlens import tasks, errors\n"
        "doc = {'instruction_id_list': ['punctuation:no_comma'], 'kwargs': [{}]}\n"
        "try: tasks.grade('ifeval', doc, 'hi')\n"
        "except errors.MissingPackageError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"pip install 'orderlens\[eval\]'", done.stdout), done.stderr
