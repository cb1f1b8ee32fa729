"""Checks against the published files; skipped where they are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderlens import tasks

FILES = {
    "hellaswag": ("hellaswag/validation.jsonl.gz", 10042),
    "cmath": ("cmath/test.jsonl.gz", 1098),
    "mmlu-pro": ("mmlu_pro/test.jsonl.gz", 12032),
    "gsm8k": ("gsm8k/test.jsonl.gz", 1319),
    "ifeval": ("ifeval/input_data.jsonl.gz", 541),
}


@pytest.mark.parametrize("name", FILES)
def test_every_row_is_kept(data_folder: Path, name: str) -> None:
    file, count = FILES[name]
    assert len(tasks.get_task(name).load(data_folder / file)) == count


def test_references_grade_themselves(data_folder: Path) -> None:
    for name, field in (("cmath", "golden"), ("gsm8k", "answer")):
        for doc in tasks.get_task(name).load(data_folder / FILES[name][0]).values():
            assert tasks.grade(name, doc, f"所以答案是 {doc[field]}。").correct, doc
    for doc in tasks.get_task("mmlu-pro").load(data_folder / FILES["mmlu-pro"][0], limit=500).values():
        assert tasks.grade("mmlu-pro", doc, f"The answer is ({doc['answer']}).").correct


def test_known_oddities(data_folder: Path) -> None:
    cmath = tasks.get_task("cmath").load(data_folder / FILES["cmath"][0])
    assert cmath["943"]["question"] == cmath["961"]["question"]
    mmlu = tasks.get_task("mmlu-pro").load(data_folder / FILES["mmlu-pro"][0])
    assert mmlu["3983"]["answer_index"] == 1
    assert tasks.grade("mmlu-pro", mmlu["3983"], "Answer: C").correct


def test_ifeval_arguments_are_those_the_checkers_know(data_folder: Path) -> None:
    pytest.importorskip("lm_eval")
    from orderlens.tasks.ifeval import checkers

    known = checkers().INSTRUCTION_DICT
    seen = set()
    for doc in tasks.get_task("ifeval").load(data_folder / FILES["ifeval"][0]).values():
        for name, kwargs in zip(doc["instruction_id_list"], doc["kwargs"], strict=True):
            seen.add(name)
            assert set(kwargs) == set(known[name](name).get_instruction_args_keys())
    assert len(seen) == 25


@pytest.mark.slow
def test_full_pass_of_prompts_and_grades(data_folder: Path) -> None:
    """All 23,713 items of the paper's four benchmarks get a prompt and a reasoned verdict."""
    pytest.importorskip("lm_eval")
    count = 0
    for name in ("hellaswag", "cmath", "mmlu-pro", "ifeval"):
        task = tasks.get_task(name)
        for doc in task.load(data_folder / FILES[name][0]).values():
            assert task.prompt(doc)
            assert tasks.grade(task, doc, "Let us see. It is so.\n\nThe answer is (B), or 18.").reason
            count += 1
    assert count == 23713
