"""The comparison of architectures at toy size: every stage runs, and the page is whole."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("scipy")

import orderlens as ol
from orderlens.analysis.census import Census
from orderlens.models.small.folder import read_folder
from orderlens.texts.sources import sample_rows

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recipes"))

import architectures

TOY = architectures.Plan(
    prefix=4,
    target=8,
    block=4,
    layers=1,
    width=16,
    heads=2,
    steps=2,
    batch=4,
    texts=4,
    noise_texts=1,
    span=3,
    census_texts=3,
)


FIXED = ("noise_texts", "span", "census_texts")
"""Settings that no option changes."""
BATCHES: list[tuple[int, Any]] = []
"""Every batch that was drawn while the models were trained, with its step."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("architectures")
    rows = [json.dumps({"text": row["text"]}) for row in sample_rows("passages")]
    (folder / "corpus").mkdir()
    (folder / "corpus" / "text-0.jsonl").write_text("\n".join(rows[:8] * 60))
    (folder / "texts.jsonl").write_text("\n".join(rows[8:12]))
    shape = {name: value for name, value in asdict(TOY).items() if name not in FIXED}
    options = [part for name, value in shape.items() for part in (f"--{name}", str(value))]
    command("prepare", "--corpus", folder / "corpus", "--work", folder, *options)
    fixed = {name: getattr(architectures.DEFAULT, name) for name in FIXED}
    assert architectures.read_plan(folder) == replace(TOY, **fixed)
    (folder / "plan.json").write_text(json.dumps(asdict(TOY)))
    with pytest.MonkeyPatch.context() as patch:
        draw = architectures.WindowMixture.batch

        def noted(mixture: Any, step: int) -> Any:
            BATCHES.append((step, draw(mixture, step)))
            return BATCHES[-1][1]

        patch.setattr(architectures.WindowMixture, "batch", noted)
        command("train", "--work", folder, "--device", "cpu")
    for stage in ("score", "census"):
        command(stage, "--work", folder, "--device", "cpu", "--texts", folder / "texts.jsonl")
    return folder


def command(*arguments: object) -> str:
    """Run a stage as its users do."""
    done = CliRunner().invoke(architectures.app, [str(part) for part in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_model_is_trained_with_its_own_attention_and_the_same_batches(work: Path) -> None:
    for name, (attention, _) in architectures.MODELS.items():
        loaded = read_folder(work / "models" / name)
        assert loaded.config.attention == attention
        notes = json.loads((work / "models" / name / "config.json").read_text())["notes"]
        assert (notes["steps"], notes["tokens"]) == (2, 2 * 4 * 12)
    again = [read_folder(work / "models" / name) for name in ("block-causal", "block-causal-again")]
    assert again[0].digest != again[1].digest
    for step in range(TOY.steps):
        drawn = [batch for number, batch in BATCHES if number == step]
        assert len(drawn) == len(architectures.MODELS)
        assert all(np.array_equal(batch, drawn[0]) for batch in drawn)


def test_whole_canvases_are_also_scored_in_one_block(work: Path) -> None:
    runs = {path.name: ol.open_run(path) for path in (work / "runs").iterdir()}
    assert set(runs) == {
        "block-causal", "block-causal-again", "full", "full-one-block", "permutation",
        "permutation-one-block",
    }  # fmt: skip
    for name, run in runs.items():
        reveals = run.reveals().to_pandas()
        assert set(reveals["block"]) == ({0} if name.endswith("one-block") else {0, 1})
        assert len(run.samples().to_pandas()) == 4 * len(architectures.ORDERS)


def test_the_autoregressive_twin_is_scored_left_to_right(work: Path) -> None:
    rows = json.loads((work / "models" / "causal" / "scores.json").read_text())
    loaded = read_folder(work / "models" / "causal")
    text = json.loads((work / "texts.jsonl").read_text().splitlines()[0])["text"]
    ids = loaded.tokenizer.encode(text)[:12]
    logq = architectures.causal_log_probs(
        loaded.network, *(architectures.torch.tensor([part]) for part in ([1, *ids[:-1]], ids))
    )[0, 4:]
    assert rows[0]["mean"] == pytest.approx(float(logq.mean()), abs=1e-5)
    assert rows[0]["var"] == pytest.approx(float(logq.var(unbiased=False)), abs=1e-5)


def test_a_second_start_finds_everything_done(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    architectures.prepare(work / "corpus", work, TOY)
    architectures.train(work, "full", "cpu")
    architectures.score(work, "full", work / "texts.jsonl", "cpu")
    after = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed <= {"plan.json"}


def test_the_page_has_every_model_and_the_gaps_are_those_of_the_runs(work: Path) -> None:
    page = command("compare", "--work", work, "--out", work / "page.md")
    assert (work / "page.md").read_text() in page
    for name in (*architectures.MODELS, "full-one-block", "permutation-one-block"):
        assert f"| {name} |" in page
    frame = ol.open_run(work / "runs" / "full").samples().to_pandas()
    means = frame.groupby("order")["mean"].mean()
    gap = means["reverse-ar"] - means["forced-ar"]
    assert f"{gap:.4f}" in page
    assert "block-causal-again has another seed" in page


def test_all_orders_of_a_span_under_every_order_agnostic_model(work: Path) -> None:
    page = command("compare", "--work", work)
    folders = sorted((work / "census").iterdir())
    assert [folder.name for folder in folders] == sorted(set(architectures.MODELS) - {"causal"})
    for folder in folders:
        census = Census.open(folder)
        spans, rules = census.spans().to_pandas(), census.rules().to_pandas()
        assert len(spans) == TOY.census_texts
        spread = ((spans["log_p_best"] - spans["log_p_worst"]) / TOY.span).mean()
        assert f"| {folder.name} | {spread:.3f} [" in page
        below = rules[rules["order"] == "max-prob"]["share_worse"].mean()
        assert f"| {folder.name} | max-prob | {below:.3f} [" in page


def test_a_folder_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run 'prepare' first"):
        architectures.read_plan(tmp_path)


def test_everything_in_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: Path) -> None:
    monkeypatch.setattr(architectures, "DEFAULT", TOY)
    monkeypatch.setattr(
        architectures, "MODELS", {"block-causal": ("block-causal", 0), "causal": ("causal", 0)}
    )
    places = ("--corpus", work / "corpus", "--texts", work / "texts.jsonl", "--work", tmp_path)
    said = command("all", *places, "--device", "cpu", "--steps", 1)
    assert "Fixed texts under every order" in said
    assert architectures.read_plan(tmp_path).steps == 1
