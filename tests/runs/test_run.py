"""Runs that earlier versions started are taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import orderlens as ol
from orderlens.errors import RunError
from orderlens.runs import run as running

SAMPLES = [ol.Sample("a", "hello ", "world and so on"), ol.Sample("b", "", "another text")]


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> list[Any]:
    work, calls = running.decode_unit, []

    def dies(spec: Any, unit: Any, *more: Any) -> Any:
        calls.append(unit)
        if len(calls) == after:
            raise KeyboardInterrupt
        return work(spec, unit, *more)

    monkeypatch.setattr(running, "decode_unit", dies)
    return calls


def test_an_unfinished_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: dict[str, Any] = {"batch_size": 1, "circulation": 2, "noise_floor": True}
    calls = interrupted(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        ol.score("hmm", SAMPLES, "forced-ar", out=tmp_path / "run", **wanted)
    run = ol.score("hmm", SAMPLES, "forced-ar", out=tmp_path / "run", **wanted)
    assert len(calls) == 3
    assert run.is_complete
    whole = ol.score("hmm", SAMPLES, "forced-ar", **wanted)
    for name in whole.tables:
        assert run.table(name).to_arrow().equals(whole.table(name).to_arrow()), name


def test_measuring_less_than_the_run_does_is_refused(tmp_path: Path) -> None:
    ol.score("hmm", SAMPLES, "forced-ar", circulation=2, out=tmp_path / "run")
    with pytest.raises(RunError, match="circulation"):
        ol.score("hmm", SAMPLES, "forced-ar", out=tmp_path / "run")


@pytest.mark.parametrize("kind", ["score", "generate", "evaluate"])
def test_a_run_keeps_its_unit_size_unless_another_is_asked_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is chosen by default may change between versions; unfinished runs must not be lost by that."""
    settings: dict[str, Any] = {"max_new_tokens": 4, "out": tmp_path / "run"}

    def again(**more: Any) -> ol.Run:
        if kind == "score":
            return ol.score("hmm", SAMPLES, "forced-ar", out=tmp_path / "run", **more)
        if kind == "generate":
            return ol.generate("hmm", SAMPLES, "forced-ar", temperature=[0, 1], **settings, **more)
        return ol.evaluate("hmm", "arith", "forced-ar", limit=2, **settings, **more)

    again(batch_size=1)
    monkeypatch.setattr(running, "decode_unit", None)
    assert again().spec["batch_size"] == 1
    with pytest.raises(RunError, match="batch_size: the run has 1, requested 2; leave out `batch_size`"):
        again(batch_size=2)
