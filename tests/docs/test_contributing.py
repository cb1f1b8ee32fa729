"""Every recipe of CONTRIBUTING.md works as printed: its file, its entry point and the command behind them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import orderlens as ol

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the package of all recipes is installed, as pip would put it."""
    folder = tmp_path_factory.mktemp("site")
    info, package = folder / "my_package-0.1.dist-info", folder / "my_package"
    info.mkdir()
    package.mkdir()
    (package / "__init__.py").touch()
    lines = []
    for text in RECIPES.values():
        code = blocks(text, "python")[0]
        (folder / code.splitlines()[0].removeprefix("# ")).write_text(code, encoding="utf-8")
        (toml,) = blocks(text, "toml")
        for group, entries in tomllib.loads(toml)["project"]["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my_package\nVersion: 0.1\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def done(place, *command):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(place), *sys.path])}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run_commands(place, recipe):
    """Run the lines behind ``$`` in one shell and return what they print."""
    (block,) = blocks(RECIPES[recipe], "console")
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    shell = ["set -e", f'orderlens() {{ "{sys.executable}" -m orderlens "$@"; }}', *lines]
    return done(place, "bash", "-c", "\n".join(shell))


def samples(place, name):
    return ol.open_run(place / "runs" / name).samples().to_pandas().set_index(["order", "sample_id"])


def test_there_are_six():
    assert list(RECIPES) == [
        "An order", "A commit rule", "A model family", "A table, a figure", "A task", "A finding",
    ]  # fmt: skip


def test_the_order_is_exact_on_the_control_and_sets_are_not(place):
    run_commands(place, "An order")
    total = samples(place, "hesitant")["log_prob"]
    assert total["hesitant"].to_numpy() == pytest.approx(total["forced-ar"].to_numpy(), abs=1e-7)
    assert (abs(total["hesitant+top=2"] - total["hesitant"]) > 1e-3).all()


def test_the_commit_rule_halves_what_is_left(place):
    run_commands(place, "A commit rule")
    reveals = ol.open_run(place / "runs" / "share").table("reveals").to_pandas()
    mine = reveals[(reveals["order"] == "max-prob+share=0.5") & (reveals["block"] == 0)]
    for _, trace in mine.groupby("sample_id"):
        sizes, left = trace.groupby("forward").size().tolist(), len(trace)
        for size in sizes:
            assert size == -(-left // 2)
            left -= size


def test_the_family_loads_a_folder(place):
    run_commands(place, "A model family")
    frame = samples(place, "pairs")
    assert set(frame.index.get_level_values("order")) == {"forced-ar", "random"}
    gap = frame.loc["forced-ar", "log_prob"] - frame.loc["random", "log_prob"]
    assert (abs(gap) > 1e-3).all(), "two neighbours at a time are no joint distribution"


def test_the_table_and_the_figure_show_the_same(place):
    printed = run_commands(place, "A table, a figure")
    assert "smallest log q" in printed
    bars = json.loads((place / "figures" / "weakest-bars.json").read_text())["bars"]
    reveals = ol.open_run(place / "runs" / "weakest").table("reveals").to_pandas()
    lowest = reveals.groupby(["order", "sample_id"])["logq"].min().groupby("order").mean()
    assert {bar["order"]: bar["min"] for bar in bars} == pytest.approx(lowest.to_dict())
    assert (place / "figures" / "weakest-bars.svg").exists()


def test_the_task_is_graded_and_says_that_it_needs_a_file(place):
    run_commands(place, "A task")
    verdicts = ol.open_run(place / "runs" / "sums").table("verdicts").to_pandas()
    assert set(verdicts["task"]) == {"sums"}
    assert len(verdicts) == 2
    assert ol.tasks.grade(_task(place), {"question": "2 + 3", "answer": 5}, "that is 5").correct
    with pytest.raises(ol.errors.UserInputError, match="add --source sums=FILE"):
        _task(place).load()


def _task(place):
    scope: dict = {}
    exec((place / "my_package" / "sums.py").read_text(), scope)
    return scope["TASK"]


def test_the_finding_is_judged(place):
    sentence = done(place, sys.executable, "-c", blocks(RECIPES["A finding"], "python")[1])
    assert re.match(r"(Supported|Not supported|Left open): 1 check,", sentence)
