from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from orderlens import tasks
from orderlens.cli.main import main
from orderlens.errors import UserInputError


def test_names_in_order() -> None:
    names = tasks.task_names()
    assert names[:7] == ["hellaswag", "cmath", "mmlu-pro", "ifeval", "gsm8k", "arith", "choice"]


@pytest.mark.parametrize("name", ["hellaswag", "cmath", "mmlu-pro", "ifeval", "gsm8k", "arith", "choice"])
def test_every_task_obeys_the_protocol(name: str) -> None:
    task = tasks.get_task(name)
    assert task.name == name
    assert task.summary
    assert isinstance(task.stop, tuple)
    assert next(iter(task.graders))


@pytest.mark.parametrize("name", ["arith", "choice"])
def test_bundled_solutions_are_graded_correct(name: str) -> None:
    task = tasks.get_task(name)
    docs = task.load(limit=60)
    assert len(docs) == 60
    for doc in docs.values():
        assert task.prompt(doc).endswith("Solution:")
        assert tasks.grade(task, doc, " " + doc["solution"]).correct
    first, second, *_ = docs.values()
    if first.get("golden", first.get("answer")) != second.get("golden", second.get("answer")):
        assert not tasks.grade(task, first, second["solution"]).correct


def test_grading_needs_neither_torch_nor_nltk() -> None:
    code = (
        "import sys\nfrom orderlens import tasks\n"
        "assert tasks.grade('cmath', {'golden': '18'}, '18').correct\n"
        "for name in ('hellaswag', 'mmlu-pro', 'gsm8k', 'arith', 'choice', 'ifeval'): tasks.get_task(name)\n"
        "assert not {'torch', 'nltk', 'lm_eval', 'duckdb', 'pyarrow'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_incomplete_task_of_a_plug_in_is_named(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    point = EntryPoint("mine", "types:SimpleNamespace", "orderlens.tasks")
    monkeypatch.setattr(tasks.TASKS, "_plugins", {"mine": [point]})
    with pytest.raises(UserInputError, match=r"task 'mine' of .* cannot be used: it has no 'name'; see"):
        tasks.get_task("mine")
    assert main(["tasks", "--json"]) == 0
    listed = {row["id"]: row["summary"] for row in json.loads(capsys.readouterr().out)}
    assert listed["mine"].startswith("broken: task 'mine'")
    assert "cmath" in listed


@pytest.mark.parametrize("name", ["arith", "choice"])
def test_bundled_tasks_are_small_by_default(name: str) -> None:
    task = tasks.get_task(name)
    assert (len(task.load()), task.max_new_tokens) == (100, 128)
