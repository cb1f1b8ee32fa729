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


SESSION = """
import contextlib, io, json, sys
from orderlens.cli.main import main
ended = []
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in command])
    ended.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ended))
"""


def orderlens(folder, commands):
    """Run commands where ``folder`` is installed; return exit code, output and errors of each."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, json.dumps(commands)],
        capture_output=True, text=True, env=environment, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def score(model, orders, out):
    sizes = ["--prefix-tokens", 8, "--target-tokens", 24]
    return ["score", "--model", model, "--data", "text.jsonl", "--orders", orders, "--out", out, *sizes]


def test_a_table_and_a_figure_of_an_installed_package(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN, encoding="utf-8")
    info = tmp_path / "mine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "some plain words to score " * 3}) + "\n")
    one, two, listed, shown, broken, number, drawn = orderlens(
        tmp_path,
        [
            score("hmm", "random:0,forced-ar", "m"),
            score("hmm:seed=7", "forced-ar", "7"),
            ["analyze", "--list", "--json"],
            ["analyze", "m", "7", "--table", "longest", "--json"],
            ["analyze", "m", "--table", "broken"],
            ["analyze", "m", "--table", "number"],
            ["figures", "m", "--figure", "longest-bars", "--format", "svg", "--out", "f"],
        ],
    )
    assert [one[0], two[0], drawn[0]] == [0, 0, 0], (one, two, drawn)
    names = json.loads(listed[1])
    assert names["longest"] == "The longest trace of each order"
    assert "broken" not in names
    rows = json.loads(shown[1])["tables"][0]["rows"]
    assert [(row["model"], row["order"], row["n"]) for row in rows] == [
        ("hmm", "forced-ar", 24),
        ("hmm", "random", 24),
        ("hmm:seed=7", "forced-ar", 24),
    ]
    for refused, why in ((broken, "package mine 0.1"), (number, "is not a function of a study")):
        assert refused[0] == 2
        assert why in refused[2]
    assert json.loads((tmp_path / "f" / "longest-bars.json").read_text())["bars"][0]["n"] == 24
