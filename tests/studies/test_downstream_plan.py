"""``replicate --study downstream``: the paper's counts, the runs of a small study, resuming, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orderlens.cli.main import main
from orderlens.store.reader import open_run
from orderlens.studies.downstream_plan import make_downstream_plan
from orderlens.tasks.bundled import frozen_items

SMALL = ("replicate", "--study", "downstream", "--preset", "demo", "--model", "hmm", "--limit", "2")


def test_full_is_the_papers_number_of_generations() -> None:
    plan = make_downstream_plan("full", "hmm")
    assert sum(map(plan.texts_of, plan.tasks)) == 94_852
    assert plan.tokens_of("evaluate") == 94_852 * 16_384
    settings = {part.folder: part.settings for part in plan.parts()}
    assert settings["cmath"]["graders"] == {"cmath": "literal-number"}
    assert settings["mmlu-pro"]["graders"] == {"mmlu-pro": "last-line-only"}  # "regex on the last line"
    assert settings["mmlu-pro"]["prompts"] == {"mmlu-pro": "opencompass"}
    assert {item["temperature"] for item in settings.values()} == {0.0}


def test_a_small_study_is_computed_judged_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orderlens.studies.downstream.figure_names", lambda _: [])
    command = [*SMALL, "--max-new-tokens", "8", "--out", str(tmp_path / "d")]
    assert main([*command, "--decode-only"]) == 0
    shown = capsys.readouterr().out
    assert "tokens at most" in shown
    assert "tokens/s in a probe" in shown
    assert "GiB after the probe" in shown
    assert "orderlens replicate --study downstream --out" in shown
    spec = open_run(tmp_path / "d" / "runs" / "choice").spec
    assert (spec["stop_at_eos"], spec["temperatures"], spec["max_new_tokens"]) == (True, [0.0], 8)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "d" / "runs").rglob("*.parquet")}
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {table["table"] for table in found["tables"]} >= {
        "downstream",
        "within-cell",
        "quadrants",
        "content",
    }
    assert found["plan"]["tasks"] == ["arith", "choice"]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert (tmp_path / "d" / "results.md").is_file()


def test_the_estimate_counts_the_items_of_the_data_and_whole_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = {task: frozen_items(task)[0] for task in ("arith", "choice")}
    for task, item in items.items():
        (tmp_path / f"{task}.jsonl").write_text(json.dumps(item), encoding="utf-8")
    sources = [part for task in items for part in ("--source", f"{task}={tmp_path / task}.jsonl")]
    command = [*SMALL, *sources, "--max-new-tokens", "8", "--out", str(tmp_path / "d")]
    assert main([*command, "--decode-only"]) == 0
    runs = open_run([tmp_path / "d" / "runs" / task for task in items])
    prompts = {len(text) for text in runs.outputs().to_arrow()["prompt_text"].to_pylist()}
    assert len(prompts) == 2
    most = sum(-(length + 8) % 32 + 8 for length in prompts)
    assert f"{4 * most} tokens at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--temperatures", "1"], "is not an option of study downstream"),
        (["--source", "cmath=x.jsonl"], "unknown task of this study 'cmath'"),
        (["--evaluator", "tiny-ar"], "is not an option of study downstream"),
        (["--max-new-tokens", "0"], "--max-new-tokens 0 must be at least 1"),
        (["--max-new-tokens", "16385"], "--max-new-tokens 16385 must be at most 16384"),
        (["--stages", "sweep"], "unknown stage 'sweep'"),
        (["--docs", "page.md"], "--docs is for study c4"),
    ],
)
def test_mistakes_are_one_line(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *more, "--out", str(tmp_path / "d")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_missing_data_of_a_later_task_is_found_before_decoding(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ["--source", f"choice={tmp_path / 'none.jsonl'}", "--max-new-tokens", "8"]
    assert main([*SMALL, *missing, *more, "--out", str(tmp_path / "d")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "d" / "runs").exists()
