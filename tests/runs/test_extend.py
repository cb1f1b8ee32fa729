"""Orders and texts are added to a run without computing the rest again, and the result is the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import orderlens as ol
from orderlens.errors import CorruptRunError, RunError, UserInputError
from orderlens.runs import run as running
from orderlens.runs.spec import Unit
from orderlens.store.folder import open_folder
from orderlens.store.verify import repair_run, verify_run
from orderlens.testing import assert_same_rows

SAMPLES = [ol.Sample(f"s{i}", "hello " * i, "world and so on"[: 4 + i]) for i in range(5)]
OPTIONS: dict[str, Any] = {"batch_size": 2, "block_size": 8}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    found: list[Unit] = []
    work = running.decode_unit

    def counted(spec: Any, unit: Unit, *more: Any) -> Any:
        found.append(unit)
        if len(found) == counted.dies_at:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return work(spec, unit, *more)

    counted.dies_at = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(running, "decode_unit", counted)
    return found


def score(out: Path | None, samples: list[ol.Sample], orders: str, **more: Any) -> ol.Run:
    return ol.score("hmm", samples, orders, out=out, **(OPTIONS | more))


def assert_same(mine: ol.Run, whole: ol.Run) -> None:
    assert_same_rows(mine, whole, ordered=False, atol=1e-12)


def test_orders_and_texts_are_added(tmp_path: Path, calls: list[Unit]) -> None:
    score(tmp_path / "run", SAMPLES[:3], "forced-ar")
    calls.clear()
    score(tmp_path / "run", SAMPLES[:3], "random:1,max-prob", extend=True)
    assert [unit.orders for unit in calls] == [("random:1", "max-prob")] * 2
    calls.clear()
    mixed = [SAMPLES[4], *SAMPLES[:2], SAMPLES[3], SAMPLES[2]]
    run = score(tmp_path / "run", mixed, "forced-ar", extend=True)
    assert [[sample.id for sample in unit.samples] for unit in calls] == [["s4", "s3"]]
    assert run.spec["orders"] == ["forced-ar", "random:1", "max-prob"]
    assert run.spec["data"]["n_samples"] == 5
    assert set(run.spec["likelihood"]) >= {"forced-ar", "random", "max-prob"}
    assert_same(run, score(None, SAMPLES, "forced-ar,random:1,max-prob"))
    assert verify_run(open_folder(tmp_path / "run")).ok


def test_both_at_once_over_temperatures(tmp_path: Path) -> None:
    def sweep(n: int, orders: str, **more: Any) -> ol.Run:
        prompts = [sample.prompt for sample in SAMPLES[:n]]
        return ol.generate("hmm", prompts, orders, max_new_tokens=8, temperature=[0, 1], **(OPTIONS | more))

    sweep(2, "max-prob", out=tmp_path / "run")
    run = sweep(5, "random", out=tmp_path / "run", extend=True)
    assert_same(run, sweep(5, "max-prob,random"))


def test_the_same_calls_find_everything_there(tmp_path: Path, calls: list[Unit]) -> None:
    score(tmp_path / "run", SAMPLES[:3], "forced-ar")
    score(tmp_path / "run", SAMPLES, "forced-ar,random:1", extend=True)
    calls.clear()
    for samples, orders, more in (
        (SAMPLES[:3], "forced-ar", {}),  # what it was started with
        (SAMPLES, "forced-ar,random:1", {}),  # what it is now
        (SAMPLES, "random:1", {"extend": True}),
    ):
        assert len(score(tmp_path / "run", samples, orders, **more).outputs()) == 10
    assert calls == []


def test_an_interrupted_extension_goes_on(tmp_path: Path, calls: list[Unit]) -> None:
    score(tmp_path / "run", SAMPLES[:3], "forced-ar")
    running.decode_unit.dies_at = len(calls) + 2  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        score(tmp_path / "run", SAMPLES, "random:1", extend=True)
    assert not ol.open_run(tmp_path / "run").is_complete
    assert not verify_run(open_folder(tmp_path / "run")).complete
    with pytest.raises(RunError, match="is not complete; finish it"):
        score(tmp_path / "run", SAMPLES, "max-prob", extend=True)
    run = score(tmp_path / "run", SAMPLES, "random:1", extend=True)
    assert len(calls) == 2 + 2 + 2  # the start, the committed and the interrupted unit, the rest
    assert_same(run, score(None, SAMPLES, "forced-ar,random:1"))


def test_a_unit_of_the_start_is_computed_again_under_its_own_orders(tmp_path: Path) -> None:
    score(tmp_path / "run", SAMPLES[:3], "forced-ar")
    score(tmp_path / "run", SAMPLES[:3], "random:1", extend=True)
    record = next(path for path in (tmp_path / "run" / "units").iterdir())
    for path in (record, *(tmp_path / "run").glob("catalog-*.json"), tmp_path / "run" / "complete.json"):
        path.unlink()
    again = score(tmp_path / "run", SAMPLES[:3], "forced-ar,random:1")
    assert_same(again, score(None, SAMPLES[:3], "forced-ar,random:1"))


def test_extending_nothing_starts_a_run(tmp_path: Path) -> None:
    assert_same(score(tmp_path / "run", SAMPLES, "forced-ar", extend=True), score(None, SAMPLES, "forced-ar"))


def test_what_cannot_be_added_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    score(out, SAMPLES[:3], "forced-ar")
    with pytest.raises(RunError, match=r"orders: the run has .* `extend`"):
        score(out, SAMPLES[:3], "random:1")
    with pytest.raises(RunError, match="give all its 3 samples again"):
        score(out, SAMPLES[1:], "forced-ar", extend=True)
    changed = [*SAMPLES[:2], ol.Sample("s2", "other", "text")]
    with pytest.raises(RunError, match="or some have changed"):
        score(out, changed, "random:1", extend=True)
    with pytest.raises(RunError, match=r"only orders and samples can be added .* block_size: the run has 8"):
        score(out, SAMPLES, "forced-ar", block_size=4, extend=True)
    with pytest.raises(RunError, match="cannot be extended by 'generate'"):
        ol.generate("hmm", SAMPLES, "forced-ar", out=out, extend=True, **OPTIONS)
    with pytest.raises(UserInputError, match=r"name the folder with out"):
        score(None, SAMPLES, "forced-ar", extend=True)
    ol.evaluate("hmm", "arith", "forced-ar", limit=1, max_new_tokens=4, out=tmp_path / "graded")
    with pytest.raises(RunError, match="kind 'evaluate', which cannot be extended"):
        score(tmp_path / "graded", SAMPLES, "forced-ar", extend=True)


def test_a_damaged_record_is_damage(tmp_path: Path) -> None:
    score(tmp_path / "run", SAMPLES[:3], "forced-ar")
    score(tmp_path / "run", SAMPLES, "forced-ar", extend=True)
    record = tmp_path / "run" / "extensions" / "000001.json"
    record.write_bytes(record.read_bytes().replace(b'"s3"', b'"s9"'))
    with pytest.raises(CorruptRunError, match=r"extensions/000001\.json is damaged"):
        ol.open_run(tmp_path / "run")
    assert [finding.kind for finding in verify_run(open_folder(tmp_path / "run")).findings] == ["extension"]
    with pytest.raises(CorruptRunError, match="restore it from a copy"):
        repair_run(open_folder(tmp_path / "run"))
