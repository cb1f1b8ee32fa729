"""Decoding where only the model's packages are installed, and grading it later somewhere else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orderlens as ol
from orderlens.api import evaluate
from orderlens.tasks.evaluation import accuracies, regrade, ungraded

ABSENT = (
    "duckdb polars pydantic typer rich lm_eval nltk langdetect datasets transformers statsmodels matplotlib"
)
BLOCKED = f"""
import sys
ABSENT = set({ABSENT!r}.split())
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""
INSTRUCTIONS = [
    {"key": 5, "prompt": "No commas.", "kwargs": [{}], "instruction_id_list": ["punctuation:no_comma"]},
    {"key": 6, "prompt": "Quote it.", "kwargs": [{}], "instruction_id_list": ["startend:quotation"]},
]
SETTINGS = {"limit": 2, "max_new_tokens": 8}
TASKS = "arith,hellaswag,ifeval"
ORDERS = ["forced-ar", "random:0", "random:1"]


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, scenes: Path) -> dict[str, str]:
    path = tmp_path_factory.mktemp("rows") / "instructions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in INSTRUCTIONS))
    return {"hellaswag": str(scenes), "ifeval": str(path)}


def decode_bare(
    model: str, out: Path, sources: dict[str, str], limit: int, tasks: str, orders: list[str]
) -> list[dict[str, object]]:
    """Evaluate in a process where everything but the model's own packages is missing."""
    code = f"""
import json
from orderlens.api import evaluate
from orderlens.tasks.evaluation import accuracies
run = evaluate(
    {model!r}, {tasks!r}, {orders!r}, sources={sources!r}, out={str(out)!r},
    **{SETTINGS | {"limit": limit}!r}
)
assert run.is_complete and not ABSENT & set(sys.modules)
print(json.dumps(accuracies(run)))
"""
    return list(json.loads(python(code).splitlines()[-1]))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, sources: dict[str, str]) -> tuple[Path, list[Any]]:
    """A run of the control and its accuracies there."""
    out = tmp_path_factory.mktemp("bare") / "run"
    return out, decode_bare("hmm", out, sources, 2, TASKS, ORDERS)


def test_decoding_elsewhere_and_grading_here_is_evaluating_here(
    tmp_path: Path, sources: dict[str, str], bare: tuple[Path, list[Any]]
) -> None:
    pytest.importorskip("lm_eval")
    out, cells = shutil.copytree(bare[0], tmp_path / "bare"), bare[1]
    assert {(cell["task"], cell["n"], cell["n_ungraded"]) for cell in cells} == {
        ("arith", 2, 0),
        ("hellaswag", 2, 0),  # the endings are scored with the model, so this grade is complete
        ("ifeval", 0, 2),
    }
    before = ol.open_run(out)
    assert list(ungraded(before)) == ["ifeval"]
    assert "6 responses not graded: IFEval needs" in ungraded(before)["ifeval"]
    after = regrade(out)
    assert ungraded(after) == {}
    here = evaluate("hmm", TASKS, ORDERS, sources=sources, **SETTINGS)
    assert accuracies(after) == accuracies(here)
    assert before.reveals().to_arrow().equals(here.reveals().to_arrow())


def test_tiny_decodes_on_a_bare_machine(tmp_path: Path, sources: dict[str, str]) -> None:
    cells = decode_bare("tiny", tmp_path / "bare", sources, 1, "hellaswag,ifeval", ORDERS[:2])
    assert {(cell["order"], cell["seed"]) for cell in cells if cell["task"] == "hellaswag"} == {
        ("forced-ar", None),
        ("random", 0),
    }
    assert all(cell["n"] == 1 for cell in cells if cell["task"] != "ifeval")
    run = ol.open_run(tmp_path / "bare")
    assert run.table("endings").to_arrow().num_rows == 2 * 4


def test_regrading_without_the_packages_says_what_is_missing(bare: tuple[Path, list[Any]]) -> None:
    code = f"""
from orderlens.errors import MissingPackageError
from orderlens.tasks.evaluation import regrade
try:
    regrade({str(bare[0])!r})
except MissingPackageError as error:
    print(error)
"""
    assert "pip install 'orderlens[eval]'" in python(code)
