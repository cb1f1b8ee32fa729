"""A third party's installed package adds a table and a figure: one file, two entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PLUGIN = '''
from orderlens.analysis import Study, Table
from orderlens.analysis.table import Column
from orderlens.figures import Recipe


def longest(study: Study) -> Table:
    """The longest trace of each order."""
    rows = [{"order": order, "n": int(part["n"].max())} for order, part in study.samples.groupby("order")]
    columns = (Column("n", "reveals"),)
    return Table("longest", "The longest trace of each order", ("order",), columns, tuple(rows))


def data(study):
    return {"bars": longest(study).to_pandas().to_dict("records")}


def draw(data):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().bar([item["order"] for item in data["bars"]], [item["n"] for item in data["bars"]])
    return figure


FIGURE = Recipe("Longest traces", data, draw)
'''
ENTRY_POINTS = (
    "[orderlens.tables]\nlongest = mine:longest\nbroken = mine:nothing\nnumber = math:pi\n"
    "[orderlens.figures]\nlongest-bars = mine:FIGURE\n"
)


def orderlens(folder, *arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-m", "orderlens", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=folder)


def test_a_table_and_a_figure_of_an_installed_package(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN, encoding="utf-8")
    info = tmp_path / "mine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "some plain words to score " * 3}) + "\n")
    for model, orders in (("hmm", "random:0,forced-ar"), ("hmm:seed=7", "forced-ar")):
        scored = orderlens(
            tmp_path,
            *("score", "--model", model, "--data", "text.jsonl", "--orders", orders, "--out", model[-1]),
            *("--prefix-tokens", 8, "--target-tokens", 24),
        )
        assert scored.returncode == 0, scored.stderr
    listed = json.loads(orderlens(tmp_path, "analyze", "--list", "--json").stdout)
    assert listed["longest"] == "The longest trace of each order"
    assert "broken" not in listed
    shown = orderlens(tmp_path, "analyze", "m", "7", "--table", "longest", "--json")
    rows = json.loads(shown.stdout)["tables"][0]["rows"]
    assert [(row["model"], row["order"], row["n"]) for row in rows] == [
        ("hmm", "forced-ar", 24),
        ("hmm", "random", 24),
        ("hmm:seed=7", "forced-ar", 24),
    ]
    for name, why in (("broken", "package mine 0.1"), ("number", "is no function of a study")):
        refused = orderlens(tmp_path, "analyze", "m", "--table", name)
        assert refused.returncode == 2
        assert why in refused.stderr
    drawn = orderlens(tmp_path, "figures", "m", "--figure", "longest-bars", "--format", "svg", "--out", "f")
    assert drawn.returncode == 0, drawn.stderr
    assert json.loads((tmp_path / "f" / "longest-bars.json").read_text())["bars"][0]["n"] == 24
