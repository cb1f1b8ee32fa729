"""``orderlens theory`` on traces it cannot use: one line, exit code 2, no traceback."""

from __future__ import annotations

import json

import numpy as np
import pytest

from orderlens.cli.main import main
from orderlens.testing import make_run, random_trace


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rng = np.random.default_rng(0)
    traces = [random_trace(rng, name, "forced-ar", 8) for name in ("a", "b")]
    folder = tmp_path_factory.mktemp("runs") / "run"
    make_run(traces).save(folder)
    return str(folder)


def refused(capsys, *arguments):
    assert main(["theory", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--by", "sample_id"), "--by is for files only"),
        (("--column", "logq=none"), "--column logq=none: not a column of traces; allowed: sample_id"),
        (("--column", "step=none"), "--column step=none: not a column of traces"),
        (("--column", "pos=x"), "unknown field of --column 'pos' (known: logq, step, is_argmax)"),
        (("--column", "lp"), "--column 'lp' must have the form FIELD=COLUMN"),
        (("--sample", "c"), "has no trace with sample 'c'"),
        (("--order", "random", "--sample", "a"), "has no trace with sample 'a' with order 'random'"),
        (("--limit", "0"), "--limit 0 must be at least 1"),
        (("--top", "-1"), "--top -1 must be at least 0"),
    ],
)
def test_options_that_do_not_fit_a_run_are_named(run, capsys, options, said):
    assert said in refused(capsys, "profile", run, *options)


def test_a_run_gives_its_traces_and_the_limit_counts_them(run, capsys):
    assert main(["theory", "profile", run, "--sigma", "1", "--limit", "1", "--json"]) == 0
    assert "forced-ar" in json.dumps(json.loads(capsys.readouterr().out))


def test_a_line_that_is_no_number_is_named_with_its_place(tmp_path, capsys):
    path = tmp_path / "logq.txt"
    path.write_text("-0.5\n\nhalf\n", encoding="utf-8")
    assert "line 3: 'half' is not a number" in refused(capsys, "profile", str(path))


@pytest.mark.parametrize(("points", "said"), [("1", "at least 2"), ("100001", "at most 100000")])
def test_a_curve_has_a_sensible_number_of_points(points, said, capsys):
    assert f"--points {points} must be {said}" in refused(capsys, "curve", "--points", points)
