"""Decoding where only the model's packages are installed, and grading it later somewhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import orderlens as ol
from orderlens.api import evaluate
from orderlens.evaluation import accuracies, regrade, ungraded

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
ORDERS = ["forced-ar", "random:0", "random:1"]


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def sources(tmp_path: Path, scenes: Path) -> dict[str, str]:
    path = tmp_path / "instructions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in INSTRUCTIONS))
    return {"hellaswag": str(scenes), "ifeval": str(path)}


def decode_bare(model: str, out: Path, sources: dict[str, str]) -> list[dict[str, object]]:
    """Evaluate in a process where everything but the model's own packages is missing."""
    code = f"""
import json
from orderlens.api import evaluate
from orderlens.evaluation import accuracies
run = evaluate(
    {model!r}, "arith,hellaswag,ifeval", {ORDERS!r}, sources={sources!r}, out={str(out)!r}, **{SETTINGS!r}
)
assert run.is_complete and not ABSENT & set(sys.modules)
print(json.dumps(accuracies(run)))
"""
    return list(json.loads(python(code).splitlines()[-1]))


def test_decoding_elsewhere_and_grading_here_is_evaluating_here(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    pytest.importorskip("lm_eval")
    cells = decode_bare("hmm", tmp_path / "bare", sources)
    assert {(cell["task"], cell["n"], cell["n_ungraded"]) for cell in cells} == {
        ("arith", 2, 0),
        ("hellaswag", 2, 0),  # the endings are scored with the model, so this grade is complete
        ("ifeval", 0, 2),
    }
    before = ol.open_run(tmp_path / "bare")
    assert list(ungraded(before)) == ["ifeval"]
    assert "6 responses not graded: IFEval needs" in ungraded(before)["ifeval"]
    after = regrade(tmp_path / "bare")
    assert ungraded(after) == {}
    here = evaluate("hmm", "arith,hellaswag,ifeval", ORDERS, sources=sources, **SETTINGS)
    assert accuracies(after) == accuracies(here)
    assert before.reveals().to_arrow().equals(here.reveals().to_arrow())


def test_tiny_decodes_on_a_bare_machine(tmp_path: Path, sources: dict[str, str]) -> None:
    cells = decode_bare("tiny", tmp_path / "bare", sources)
    assert {(cell["order"], cell["seed"]) for cell in cells if cell["task"] == "hellaswag"} == {
        ("forced-ar", None),
        ("random", 0),
        ("random", 1),
    }
    assert all(cell["n"] == 2 for cell in cells if cell["task"] != "ifeval")
    run = ol.open_run(tmp_path / "bare")
    assert run.table("endings").to_arrow().num_rows == 2 * 3 * 4


def test_regrading_without_the_packages_says_what_is_missing(tmp_path: Path, sources: dict[str, str]) -> None:
    decode_bare("hmm", tmp_path / "bare", sources)
    code = f"""
from orderlens.errors import MissingPackageError
from orderlens.evaluation import regrade
try:
    regrade({str(tmp_path / "bare")!r})
except MissingPackageError as error:
    print(error)
"""
    assert "pip install 'orderlens[eval]'" in python(code)
