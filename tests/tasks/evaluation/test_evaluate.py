from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orderlens as ol
from orderlens import tasks
from orderlens.errors import DataFileError, RunError, UnknownNameError, UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.runs import run as running
from orderlens.tasks import multiple_choice as hellaswag
from orderlens.tasks.evaluation import accuracies, latest_verdicts, regrade
from orderlens.tasks.evaluation.grading import response_of, score_endings
from orderlens.tasks.evaluation.job import full_prompt, response_length

ORDERS = "forced-ar,random:1"


def small(out: Path | None = None, **more: Any) -> ol.Run:
    wanted = {"limit": 3, "max_new_tokens": 20, "batch_size": 2, "block_size": 8, "out": out} | more
    return ol.evaluate("hmm", wanted.pop("tasks", "arith,choice"), wanted.pop("orders", ORDERS), **wanted)


def rows(run: ol.Run, table: str) -> list[dict[str, Any]]:
    return run.table(table).to_arrow().to_pylist()


def test_every_item_is_decoded_and_graded_under_every_order(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    verdicts = rows(run, "verdicts")
    assert len(verdicts) == 2 * 3 * 2
    assert {(row["task"], row["order"], row["seed"]) for row in verdicts} == {
        (task, order, seed)
        for task in ("arith", "choice")
        for order, seed in (("forced-ar", None), ("random", 1))
    }
    outputs = {(row["task"], row["sample_id"], row["order"]): row for row in rows(run, "outputs")}
    for verdict in verdicts:
        text = outputs[verdict["task"], verdict["sample_id"], verdict["order"]]["text"]
        doc = tasks.get_task(verdict["task"]).load(limit=3)[verdict["sample_id"]]
        task = tasks.get_task(verdict["task"])
        again = tasks.grade(task, doc, text.partition("\nQuestion:")[0])
        assert (verdict["correct"], verdict["reason"]) == (again.correct, again.reason)
    assert run.spec["kind"] == "evaluate"
    assert run.spec["data"]["tasks"]["arith"]["n_items"] == 3
    assert run.is_complete


def test_traces_are_those_of_generate() -> None:
    run = small(tasks="arith", batch_size=8)
    docs = tasks.get_task("arith").load(limit=3)
    prompts = [ol.Sample(row, doc["prompt"], task="arith") for row, doc in docs.items()]
    plain = ol.generate("hmm", prompts, ORDERS, max_new_tokens=20, block_size=8)
    assert run.reveals().to_arrow().equals(plain.reveals().to_arrow())


def test_an_interrupted_run_resumes_to_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small(tmp_path / "whole")
    work, calls = running.decode_unit, []

    def dies(spec: Any, unit: Any, *more: Any) -> Any:
        calls.append(unit)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return work(spec, unit, *more)

    monkeypatch.setattr(running, "decode_unit", dies)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "cut")
    assert 0 < len(rows(ol.open_run(tmp_path / "cut"), "verdicts")) < 12
    resumed = small(tmp_path / "cut")
    assert len(calls) == 4  # two committed units were not computed again
    for table in ("reveals", "outputs", "verdicts", "documents"):
        assert resumed.table(table).to_arrow().equals(whole.table(table).to_arrow()), table


def test_other_settings_do_not_resume(tmp_path: Path) -> None:
    small(tmp_path / "run")
    with pytest.raises(RunError):
        small(tmp_path / "run", limit=2)


def test_hellaswag_is_graded_by_the_models_own_scores(scenes: Path) -> None:
    run = small(tasks=["hellaswag"], sources={"hellaswag": scenes}, max_new_tokens=8)
    model = HiddenMarkovModel.parse("").with_block_size(8)
    docs = tasks.get_task("hellaswag").load(scenes)
    assert list(docs) == ["0", "1", "2"]
    for verdict, output in zip(rows(run, "verdicts"), rows(run, "outputs"), strict=True):
        doc = docs[verdict["sample_id"]]
        text = hellaswag.ending_prompt(doc, hellaswag.hellaswag_prompt(doc) + "\n\nSolution:", output["text"])
        before = model.tokenizer.encode(text)
        totals = []
        for ending in hellaswag.endings(doc):
            target = model.tokenizer.encode(" " + ending)
            joint = model.joint_log_prob([*before, *target]) - model.joint_log_prob(before)
            totals.append(joint / len(target))
        assert verdict["grader"] == "likelihood-token"
        assert verdict["extracted"] == "ABCD"[int(np.argmax(totals))]
    assert len(rows(run, "endings")) == 3 * 2 * 4


def test_endings_without_room_lose_the_start_of_their_text() -> None:
    model = HiddenMarkovModel.parse("").with_block_size(8)
    model.max_positions = 64  # type: ignore[misc]
    long, short = "x" * 500 + "the end of it", ("x" * 500 + "the end of it")[-(64 - 8 - 4) :]
    found = score_endings(model, [(long, [" one", ""]), (short, [" one"])], "zero", 2)
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1] == []


def test_stop_strings_cut_the_response() -> None:
    task = tasks.get_task("arith")
    assert response_of(task, {"text": "The answer is 4.\nQuestion: And 5?"}) == "The answer is 4."
    assert response_of(task, {"text": None}) == ""


class _Template:
    source = "template"

    def render(self, messages: list[dict[str, str]], *, reply: bool = True) -> str:
        return f"<user>{messages[0]['content']}<reply {reply}>"


def test_chat_templates_replace_the_cue() -> None:
    model = HiddenMarkovModel.parse("")
    task, doc = tasks.get_task("cmath"), {"question": "1+1?"}
    assert full_prompt(model, task, doc, True).endswith("1+1?\n\nSolution:")
    model.chat = _Template()  # type: ignore[attr-defined]
    assert full_prompt(model, task, doc, True) == f"<user>{task.prompt(doc)}<reply True>"
    assert full_prompt(model, task, doc, False).endswith("Solution:")


def test_items_that_cannot_fit_are_named(scenes: Path) -> None:
    model = HiddenMarkovModel.parse("").with_block_size(8)
    lengths = {row: len(doc["prompt"]) for row, doc in tasks.get_task("arith").load(limit=6).items()}
    longest = max(lengths, key=lengths.__getitem__)
    model.max_positions = lengths[longest] + 8  # type: ignore[misc]
    run = ol.evaluate(model, "arith", "forced-ar", limit=6, max_new_tokens=16)
    skipped = run.spec["data"]["tasks"]["arith"]["skipped_too_long"]
    assert longest in skipped
    assert {row["sample_id"] for row in rows(run, "verdicts")} == set(lengths) - set(skipped)
    model.max_positions = 16  # type: ignore[misc]
    with pytest.raises(UserInputError, match="leaves room"):
        ol.evaluate(model, "arith", "forced-ar", limit=2, max_new_tokens=16)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tasks": "arithm"}, UnknownNameError, "did you mean 'arith'"),
        ({"tasks": ""}, UserInputError, "at least one task"),
        ({"tasks": "arith,arith"}, UserInputError, "each once"),
        ({"orders": "oracle-max-q"}, UserInputError, "needs the target"),
        ({"graders": {"arith": "nope"}}, UnknownNameError, "unknown grader 'nope'"),
        ({"graders": {"cmath": "last-number"}}, UserInputError, "not among arith, choice"),
        ({"sources": {"arith": "missing.jsonl"}}, DataFileError, "does not exist"),
        ({"limit": 0}, UserInputError, "limit=0"),
        ({"max_new_tokens": 20_000}, UserInputError, "max_new_tokens"),
    ],
)
def test_bad_requests(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small(**arguments)


def test_regrading_adds_a_generation_and_needs_no_model(tmp_path: Path, scenes: Path) -> None:
    folder = tmp_path / "run"
    wanted = {"tasks": "hellaswag,choice", "sources": {"hellaswag": scenes}, "max_new_tokens": 8}
    first = small(folder, **wanted)
    assert len(rows(regrade(folder), "verdicts")) == 12  # nothing changed, nothing written
    again = regrade(folder, graders={"hellaswag": "likelihood-none", "choice": "first-match"})
    verdicts = again.table("verdicts").to_arrow()
    assert verdicts.num_rows == 24
    newest = latest_verdicts(verdicts)
    assert newest.num_rows == 12
    assert set(newest["grader"].to_pylist()) == {"likelihood-none", "first-match"}
    assert again.is_complete
    direct = small(**wanted, graders={"hellaswag": "likelihood-none", "choice": "first-match"})
    names = ["task", "sample_id", "order", "correct", "extracted", "reason", "grader"]
    assert newest.select(names).equals(direct.table("verdicts").to_arrow().select(names))
    assert first.reveals().to_arrow().equals(again.reveals().to_arrow())
    assert len(rows(regrade(folder), "verdicts")) == 36  # back to the rules of the spec
    with pytest.raises(UserInputError, match="has no task 'cmath'"):
        regrade(folder, graders={"cmath": "last-number"})


def test_only_evaluations_can_be_regraded(tmp_path: Path) -> None:
    ol.generate("hmm", ["hello"], "forced-ar", max_new_tokens=4, out=tmp_path / "run")
    with pytest.raises(RunError, match="not an evaluation"):
        regrade(tmp_path / "run")


def test_accuracies() -> None:
    cells = accuracies(small(tasks="choice", orders=ORDERS))
    assert [(cell["order"], cell["n"]) for cell in cells] == [("forced-ar", 3), ("random", 3)]
    for cell in cells:
        assert cell["accuracy"] == cell["n_correct"] / 3
        assert cell["low"] <= cell["accuracy"] <= cell["high"]


def test_ifeval_levels(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    path = tmp_path / "i.jsonl"
    path.write_text(
        '{"key": 1, "prompt": "Say it.", "kwargs": [{}, {}], '
        '"instruction_id_list": ["punctuation:no_comma", "startend:quotation"]}\n'
    )
    run = small(tasks="ifeval", sources={"ifeval": path}, orders="forced-ar")
    (cell,) = accuracies(run)
    (row,) = rows(run, "verdicts")
    assert row["per_instruction"] is not None
    assert 0 <= cell["instruction_strict"] <= cell["instruction_loose"] <= 1


def test_hostile_characters_are_decoded_and_unusable_documents_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    row = {"question_id": 2, "question": "\u202eq\x07", "options": ["", "y", "z"], "answer": "B"}
    path.write_text(json.dumps(row))
    run = small(tasks="mmlu-pro", sources={"mmlu-pro": path}, orders="forced-ar", max_new_tokens=8)
    assert [found["correct"] for found in rows(run, "verdicts")] == [False]
    path.write_text(json.dumps(row | {"options": []}))
    with pytest.raises(DataFileError, match="mmlu-pro, row 1: 'options' is not a list of options"):
        small(tasks="mmlu-pro", sources={"mmlu-pro": path}, orders="forced-ar", max_new_tokens=8)


def test_tasks_bring_their_own_response_length() -> None:
    assert response_length("arith,choice") == 128
    assert response_length(["arith", "mmlu-pro"]) == 2048
    run = small(tasks="arith", orders="forced-ar", limit=1, max_new_tokens=None)
    assert run.spec["max_new_tokens"] == 128


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_endings_are_scored_by_the_joint_whatever_shares_a_batch(batch_size: int) -> None:
    model = HiddenMarkovModel.parse("").with_block_size(8)
    requests = [("the sea", [" is", " was calm"]), ("", [" alone"]), ("no", []), ("a b", ["", " c"])]
    found = score_endings(model, requests, "zero", batch_size)
    assert [len(values) for values in found] == [2, 1, 0, 2]
    for (text, endings), values in zip(requests, found, strict=True):
        before = model.tokenizer.encode(text)
        for ending, tokens in zip(endings, values, strict=True):
            target = model.tokenizer.encode(ending)
            joint = model.joint_log_prob([*before, *target]) - model.joint_log_prob(before)
            assert len(tokens) == len(target)
            assert sum(tokens) == pytest.approx(joint, abs=1e-9)


def test_regrading_an_unfinished_run_leaves_it_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, calls = running.decode_unit, []

    def dies(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return work(*given)

    monkeypatch.setattr(running, "decode_unit", dies)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "cut", tasks="choice")
    before = rows(ol.open_run(tmp_path / "cut"), "verdicts")
    again = regrade(tmp_path / "cut", graders={"choice": "first-match"})
    assert not again.is_complete
    newest = latest_verdicts(again.table("verdicts").to_arrow()).to_pylist()
    assert {row["grader"] for row in newest} == {"first-match"}
    assert len(newest) == len(before)
    assert {row["generation"] for row in newest} == {1}
    monkeypatch.undo()
    whole = small(tmp_path / "cut", tasks="choice")
    assert whole.is_complete
    newest = latest_verdicts(whole.table("verdicts").to_arrow()).to_pylist()
    assert len(newest) == 6
