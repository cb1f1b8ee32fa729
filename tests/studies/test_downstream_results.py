"""A graded run as a folder: values of tables and figures, the reading, the command line, and no data text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis import Options, Resampling, Study, simulate_study
from orderlens.analysis.tables_downstream import guessing_levels
from orderlens.api import evaluate
from orderlens.cli.main import main
from orderlens.errors import RunError, UndefinedFigureError
from orderlens.figures import accuracy
from orderlens.figures.catalogue import FIGURES, figure_names
from orderlens.store.reader import memory_run
from orderlens.studies.downstream import facts, graded_study, read_downstream, write_downstream
from orderlens.studies.results import Results

OPTIONS = Options(resampling=Resampling(reps=100), null_reps=30)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Two tasks, four orders, two seeds of the random one."""
    parts = []
    for task, effect in (("sums", 0.8), ("letters", 0.0)):
        made = simulate_study(60, var_effect=effect, task=task, n_tokens=16)
        again = made[made["order"] == "random"].assign(order="random:1")
        again = again.assign(var=1.1 * again["var"], correct=~again["correct"])
        parts += [made.assign(order=made["order"].replace("random", "random:0")), again]
    out = pd.concat(parts, ignore_index=True)
    out["n"] = 2 * (out["item_id"].astype(int) % 5 + 3)
    return out


@pytest.fixture(scope="module")
def study(make_graded_run: Any, frame: pd.DataFrame) -> Study:
    options = [f"{letter} option {number}" for number, letter in enumerate("abcd")]
    documents = [
        {"task": "letters", "id": str(item), "options": options, "question": f"Secret words {item}?"}
        for item in range(60)
    ]
    return graded_study(Study(make_graded_run(frame, documents), OPTIONS))


@pytest.fixture(scope="module")
def written(study: Study, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    folder = tmp_path_factory.mktemp("results")
    return write_downstream(study, folder, ["svg"]), folder


def cells(data: dict[str, Any], task: str, part: str) -> dict[str, Any]:
    (found,) = (item for item in data["tasks"] if item["task"] == task)
    return {item["order"]: item for item in found[part]}


def test_the_plane_holds_averages_and_single_seeds(study: Study, frame: pd.DataFrame) -> None:
    points = cells(accuracy.data(study), "letters", "points")
    rows = frame[(frame["task"] == "letters") & frame["order"].str.startswith("random")]
    assert points["random"]["var"]["value"] == pytest.approx(rows["var"].mean())
    assert points["random"]["accuracy"]["value"] == pytest.approx(50.0)  # one seed is the other's opposite
    by_seed = 100 * rows.groupby("order")["correct"].mean()
    assert [seed["accuracy"] for seed in points["random"]["seeds"]] == pytest.approx(by_seed.tolist())
    assert points["max-prob"]["seeds"] == []
    levels = {item["task"]: item["guessing"] for item in accuracy.data(study)["tasks"]}
    assert levels["letters"] == 25.0
    assert np.isnan(levels["sums"])


def test_named_options_have_no_known_level_of_guessing(study: Study) -> None:
    verdicts = study.verdicts.assign(grader="named-option")
    other = SimpleNamespace(verdicts=verdicts, run=study.run)
    assert guessing_levels(cast(Study, other)) == {}
    assert guessing_levels(study)["letters"] == 25.0


def test_bins_cover_every_sample_once(study: Study, frame: pd.DataFrame) -> None:
    series = cells(accuracy.bins_data(study), "sums", "series")
    for order, item in series.items():
        rows = frame[(frame["task"] == "sums") & (frame["order"].str.partition(":")[0] == order)]
        sizes = np.array([one["accuracy"]["n"] for one in item["bins"]])
        shares = np.array([one["accuracy"]["value"] for one in item["bins"]])
        assert sizes.sum() == len(rows)
        assert (sizes * shares).sum() == pytest.approx(100 * rows["correct"].sum())
        assert [one["var"] for one in item["bins"]] == sorted(one["var"] for one in item["bins"])


def test_predictors_match_the_table_of_controls(study: Study) -> None:
    from orderlens.analysis.table import table_recipe

    table = next(t for t in table_recipe("controls")(study) if t.name == "controls-auroc")
    rows = cells(accuracy.auroc_data(study), "sums", "rows")
    for order in ("forced-ar", "max-prob"):
        for name in ("var", "mean", "n"):
            cell = table.cell(f"auroc_{name}", task="sums", order=order)
            assert rows[order]["auroc"][name]["value"] == pytest.approx(cell.value)  # type: ignore[union-attr]
        auroc, lead = rows[order]["auroc"], rows[order]["lead"]
        assert lead["mean"]["value"] == pytest.approx(auroc["var"]["value"] - auroc["mean"]["value"])


def test_effects_match_the_nested_regression(study: Study) -> None:
    from orderlens.analysis.table import table_recipe

    table = table_recipe("controls")(study)[0]
    effects = cells(accuracy.effect_data(study), "sums", "rows")["forced-ar"]["effect"]
    known = table.cell("var_coefficient", task="sums", order="forced-ar")
    assert effects["given_both"]["value"] == pytest.approx(known.value, abs=1e-6)  # type: ignore[union-attr]
    assert set(effects) == {"alone", "given_length", "given_mean", "given_both"}


def test_the_folder_is_complete_and_holds_no_data_text(written: tuple[Results, Path]) -> None:
    results, tmp_path = written
    assert [item.name for item in results.figures] == figure_names(["evaluate"])
    for name in figure_names(["evaluate"]):
        assert (tmp_path / "figures" / f"{name}.svg").stat().st_size > 2000
        json.loads((tmp_path / "figures" / f"{name}.json").read_text())
    names = {path.stem for path in (tmp_path / "tables").iterdir()}
    wanted = {"downstream", "selectors", "within-cell", "quadrants", "content", "controls", "controls-auroc"}
    assert wanted <= names
    page = (tmp_path / "results.md").read_text()
    for part in ("What these data support", "![Accuracy in bins of Var", "ρ(Var \\| mean, n)", "60 items"):
        assert part in page
    assert json.loads((tmp_path / "summary.json").read_text())["headlines"] == results.reading.headlines()
    for path in tmp_path.rglob("*"):
        if path.suffix in (".md", ".txt", ".json", ".csv", ".tex", ".svg"):
            text = path.read_text()
            assert "Secret words" not in text, path
            assert "a option 0" not in text, path


def test_figures_redraw_from_their_sidecars(written: tuple[Results, Path]) -> None:
    tmp_path = written[1]
    for name in figure_names(["evaluate"]):
        stored = json.loads((tmp_path / "figures" / f"{name}.json").read_text())
        panels = 8 if name == "plane" else 2  # one per task and order, or one per task
        assert len(FIGURES.get(name).draw(stored).axes) == panels


def binned(low: float, high: float) -> dict[str, Any]:
    accuracy = {"value": 50.0, "low": 40.0, "high": 60.0, "n": 20}
    bins = [{"var": var, "accuracy": accuracy} for var in np.geomspace(low, high, 5)]
    tasks = [{"task": task, "series": [{"order": "max-prob", "bins": bins}]} for task in ("a", "b", "c")]
    return {"tasks": tasks}


@pytest.mark.parametrize("low", [0.02, 1e-3, 1e-5, 1e-9])
def test_numbers_on_the_axis_of_var_do_not_overlap(low: float) -> None:
    figure = accuracy.draw_bins(binned(low, 0.1))
    figure.canvas.draw()
    left, right = figure.axes[0].get_xlim()
    labels = [
        label.get_window_extent()
        for label in figure.axes[0].get_xticklabels()
        if label.get_text() and left <= label.get_position()[0] <= right
    ]
    assert len(labels) >= 2
    ordered = sorted(labels, key=lambda box: box.x0)
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(ordered))


def test_orders_that_agree_do_not_look_far_apart() -> None:
    none = {"value": 0.0, "low": 0.0, "high": 0.0, "n": 20}
    points = [{"order": "random", "var": none | {"value": 0.4}, "accuracy": none, "seeds": []}]
    data = {"tasks": [{"task": "a", "guessing": None, "points": points}], "temperature": 0.0}
    low, high = accuracy.draw(data).axes[0].get_ylim()
    assert high - low == accuracy.LEAST_SPAN
    assert -1 < low < 0


def test_runs_without_verdicts_are_refused(tmp_path: Path) -> None:
    bare = memory_run({}, {"kind": "score"})
    with pytest.raises(RunError, match="no graded answers"):
        graded_study(Study(bare))
    with pytest.raises(UndefinedFigureError, match="nothing was graded"):
        accuracy.bins_data(Study(bare))


def test_facts_name_what_was_not_graded(make_graded_run: Any, frame: pd.DataFrame) -> None:
    part = frame[frame["task"] == "sums"].astype({"correct": object}).copy()
    part.iloc[:3, part.columns.get_loc("correct")] = None
    reading = read_downstream(graded_study(Study(make_graded_run(part), OPTIONS)))
    assert any("300 responses, 3 of them not graded, grader made up" in fact for fact in reading.facts)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    evaluate("hmm", "arith", "forced-ar,random:0,random:1", limit=3, max_new_tokens=8, out=run)
    assert main(["downstream", run, "--bootstrap", "20"]) == 0
    assert "What these data leave open" in capsys.readouterr().out
    folder = tmp_path / "results"
    assert main(["downstream", run, "--out", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["out"] == str(folder)
    assert "arith" in shown["headlines"][0]
    assert (folder / "results.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "no run at"),
        (["RUN", "--grader", "nope"], "no verdicts of grader 'nope'"),
        (["RUN", "--temperature", "0.7"], "temperature 0.7"),
        (["RUN", "--bootstrap", "-1"], "--bootstrap -1 must be at least 0"),
    ],
)
def test_bad_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    run = str(tmp_path / "run")
    evaluate("hmm", "arith", "forced-ar", limit=2, max_new_tokens=4, out=run)
    replaced = [{"RUN": run, "OUT": str(tmp_path / "out")}.get(item, item) for item in arguments]
    assert main(["downstream", *replaced]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("orderlens:")]
    assert message in line


@pytest.mark.parametrize(("given", "shown"), [("0.8:0.4", "0.8:0.4"), (0.5, "0.5")])
def test_the_facts_name_the_temperature_or_its_schedule(given: str | float, shown: str) -> None:
    run = evaluate("hmm", "arith", "forced-ar", limit=2, max_new_tokens=4, temperature=given)
    assert f"; temperature {shown}; at most 4 new tokens." in facts(Study(run, OPTIONS))[0]
