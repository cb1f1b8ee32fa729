"""What an evaluation will decode: names, sources and graders resolved, prompts that do not fit set aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderlens.decode.generate import GenerationSettings
from orderlens.errors import UnknownNameError, UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.tasks import get_task
from orderlens.tasks.evaluation.job import (
    ChosenTask,
    choose_tasks,
    document_json,
    documents_digest,
    fits,
    full_prompt,
    named_tasks,
    write_prompts,
)


@pytest.fixture
def model() -> HiddenMarkovModel:
    made = HiddenMarkovModel(block_size=8)
    made.max_positions = 64  # type: ignore[misc]
    return made


def chosen(lengths: list[int], name: str = "arith") -> ChosenTask:
    docs = {str(place): {"prompt": "x" * n, "answer": 1} for place, n in enumerate(lengths)}

    class Plain:
        stop = ("\n",)
        cue = ""
        hub = "hub/file"

        def prompt(self, doc: Any) -> str:
            return str(doc["prompt"])

    Plain.name = name  # type: ignore[attr-defined]
    return ChosenTask(Plain(), "rule", "here.jsonl", docs)  # type: ignore[arg-type]


def test_another_prompt_is_written_and_recorded(model: HiddenMarkovModel, tmp_path: Path) -> None:
    row = {"question_id": 7, "question": "Which?", "options": ["x ", "N/A", "z"], "answer": "C"}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    given: dict[str, Any] = {"sources": {"mmlu-pro": tmp_path / "m.jsonl"}}
    model.max_positions = 4096  # type: ignore[misc]
    texts, records = [], []
    for prompts in (None, {"mmlu-pro": "opencompass"}):
        made = write_prompts(
            model, choose_tasks("mmlu-pro", prompts=prompts, **given), GenerationSettings(8), chat=False
        )
        texts.append(made.items["mmlu-pro", "7"].prompt)
        records.append(made.record()["tasks"]["mmlu-pro"])
    assert texts[0].startswith("Answer the multiple-choice question below.")
    assert texts[1] == (
        "Answer the following multiple choice question. The last line of your response should be of the "
        "following format: 'ANSWER: $LETTER' (without quotes) where LETTER is one of Options(e.g. one of "
        "ABCDEFGHIJKLMNOP). Think step by step before answering.\n\nQuestion:\n\nWhich?\n\n"
        "Options:\n\nA. x \nC. z\n\nSolution:"
    )
    assert records[1] == records[0] | {"prompt": "opencompass"}


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ({"mmlu-pro": "opencompas"}, "did you mean 'opencompass'"),
        ({"cmath": "opencompass"}, "which is not among mmlu-pro"),
    ],
)
def test_unknown_prompts_are_refused(prompts: dict[str, str], said: str) -> None:
    with pytest.raises(UserInputError, match=said):
        choose_tasks("mmlu-pro", prompts=prompts)
    with pytest.raises(UnknownNameError, match="known: only its own; leave out --prompt"):
        choose_tasks("cmath", prompts={"cmath": "x"})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("arith", ["arith"]),
        (" arith , choice,", ["arith", "choice"]),
        (["choice", "arith"], ["choice", "arith"]),
        (("arith",), ["arith"]),
    ],
)
def test_names_are_a_list_or_separated_by_commas(names: Any, expected: list[str]) -> None:
    assert [task.name for task in named_tasks(names)] == expected


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (b"arith", UserInputError, "must be names of tasks, as a list or separated by commas"),
        (7, UserInputError, "tasks 7 must be names of tasks"),
        ([], UserInputError, "must name at least one task, each once"),
        (" , ", UserInputError, "must name at least one task"),
        (["arith", "arith"], UserInputError, "each once"),
        ("aritj", UnknownNameError, "did you mean 'arith'"),
    ],
)
def test_what_names_no_task_is_refused(names: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        named_tasks(names)


def test_a_task_takes_the_source_and_rule_given_for_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "own.jsonl"
    file.parent.mkdir()
    row = {"question_id": 2, "question": "q", "options": ["x", "y"], "answer": "B"}
    file.write_text(json.dumps(row) + "\n" + json.dumps(row | {"question_id": 3}) + "\n")
    (chosen,) = choose_tasks("mmlu-pro", sources={"mmlu-pro": file}, limit=1)
    assert list(chosen.docs) == ["2"]
    assert chosen.source == "own.jsonl", "no folder of a machine is recorded"
    rules = list(get_task("mmlu-pro").graders)
    assert chosen.grader == rules[0]
    (other,) = choose_tasks("mmlu-pro", sources={"mmlu-pro": file}, graders={"mmlu-pro": rules[-1]})
    assert other.grader == rules[-1]
    assert list(other.docs) == ["2", "3"]
    (generated,) = choose_tasks("arith", limit=2)
    assert generated.source == "generated"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"limit": 0}, UserInputError, "limit=0"),
        ({"limit": 1.5}, UserInputError, "limit=1.5"),
        (
            {"sources": {"choice": "x.jsonl"}},
            UserInputError,
            "source given for task 'choice', which is not among",
        ),
        (
            {"graders": {"choice": "x"}},
            UserInputError,
            "grader given for task 'choice', which is not among arith",
        ),
        ({"graders": {"arith": "x"}}, UnknownNameError, "unknown grader 'x' of arith"),
    ],
)
def test_typing_errors_are_found_before_data_are_read(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        choose_tasks("arith", **arguments)


@pytest.mark.parametrize(
    ("n_prompt", "new", "anchor", "inside"),
    [
        (56, 8, "zero", True),
        (57, 8, "zero", False),  # the last block would end at 72
        (49, 8, "zero", True),
        (56, 8, "prompt", True),
        (57, 7, "prompt", False),  # one block of 8 from 57 on
        (0, 64, "zero", True),
        (0, 65, "zero", False),
    ],
)
def test_prompt_and_response_are_rounded_up_to_whole_blocks(
    model: HiddenMarkovModel, n_prompt: int, new: int, anchor: Any, inside: bool
) -> None:
    assert fits(model, n_prompt, GenerationSettings(new, 0.0, 0, anchor=anchor)) is inside


def test_prompts_that_cannot_fit_are_named_and_left_out(model: HiddenMarkovModel) -> None:
    settings = GenerationSettings(8, 0.0, 0, anchor="zero")
    prompts = write_prompts(model, [chosen([3, 60, 56, 99], "one"), chosen([1], "two")], settings)
    assert [(sample.task, sample.id) for sample in prompts.samples] == [
        ("one", "0"),
        ("one", "2"),
        ("two", "0"),
    ]
    assert prompts.skipped == {"one": ["1", "3"]}
    record = prompts.record()["tasks"]
    assert record["one"]["skipped_too_long"] == ["1", "3"]
    assert record["two"]["skipped_too_long"] == []
    assert record["one"]["n_items"] == 4
    assert (record["one"]["source"], record["one"]["grader"], record["one"]["stop"]) == (
        "here.jsonl",
        "rule",
        ["\n"],
    )
    assert prompts.chat is False, "this model has no chat template"
    with pytest.raises(
        UserInputError, match=r"no prompt leaves room for 8 tokens in the 64 .*--max-new-tokens"
    ):
        write_prompts(model, [chosen([80])], settings)


def test_a_model_without_a_template_gets_the_cue() -> None:
    task = get_task("mmlu-pro")
    doc = {"question_id": 2, "question": "q", "options": ["x", "y"], "answer": "B"}
    plain = full_prompt(HiddenMarkovModel(block_size=8), task, doc, chat=True)
    assert plain == task.prompt(doc) + task.cue
    assert plain.endswith(task.cue)
    assert task.cue


@pytest.mark.parametrize(
    "other",
    [
        {"1": {"a": 1, "b": 3}, "2": {"a": 0}},
        {"2": {"a": 0}, "1": {"a": 1, "b": 2}},
        {"1": {"a": 1, "b": 2}},
        {"1": {"a": 1, "b": 2}, "3": {"a": 0}},
        {"1": {"a": 1, "b": "2"}, "2": {"a": 0}},
    ],
)
def test_the_digest_of_documents_sees_every_change(other: dict[str, Any]) -> None:
    docs = {"1": {"a": 1, "b": 2}, "2": {"a": 0}}
    assert documents_digest(docs) == documents_digest({"1": {"b": 2, "a": 1}, "2": {"a": 0}})
    assert documents_digest(docs) != documents_digest(other)


def test_documents_have_one_spelling() -> None:
    assert document_json({"b": "ä", "a": [1, None]}) == '{"a": [1, null], "b": "\\u00e4"}'
    assert json.loads(document_json({"when": Path("x")})) == {"when": "x"}
