"""Runs in memory: what they say of themselves, saving them, the text of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

import orderlens as ol
from orderlens.errors import RunError
from orderlens.runs import run as running
from orderlens.store.codec import sort_rows

SAMPLES = [ol.Sample("a", "hello ", "world and so on"), ol.Sample("b", "", "another text")]
ORDERS = ["forced-ar", "random:3"]


@pytest.fixture(scope="module")
def run() -> ol.Run:
    return ol.score("hmm", SAMPLES, ORDERS, batch_size=1, circulation=2)


def test_a_run_names_model_orders_and_counts(run: ol.Run, tmp_path: Path) -> None:
    facts = "score of hmm, 2 orders: forced-ar, random:3, 2 samples, 54 reveals, complete"
    assert repr(run) == f"Run(memory: {facts})"
    saved = run.save(tmp_path / "kept")
    assert repr(saved) == f"Run({tmp_path / 'kept'}: {facts})"
    assert repr(ol.open_run([tmp_path / "kept", tmp_path / "kept"])).count(facts) == 2


def test_a_saved_run_is_as_if_computed_there(
    run: ol.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = run.save(tmp_path / "kept")
    assert saved.spec == run.spec
    for name in run.tables:
        here, there = (sort_rows(item.table(name).to_arrow(), name) for item in (run, saved))
        assert there.equals(here), name
    monkeypatch.setattr(running, "decode_unit", None)  # nothing is computed again
    again = ol.score("hmm", SAMPLES, ORDERS, batch_size=1, circulation=2, out=tmp_path / "kept")
    assert len(again.reveals()) == 54
    assert run.save(tmp_path / "kept").is_complete


def test_only_runs_in_memory_are_saved(run: ol.Run, tmp_path: Path) -> None:
    saved = run.save(tmp_path / "kept")
    with pytest.raises(RunError, match="copy its folder"):
        saved.save(tmp_path / "other")


def test_the_text_of_tokens(run: ol.Run, tmp_path: Path) -> None:
    table = run.reveals(text=True).to_arrow()
    names = table.column_names
    assert names[names.index("token_id") + 1] == "text"
    frame = table.to_pandas()
    forced = frame[(frame.sample_id == "a") & (frame.order == "forced-ar")]
    assert "".join(forced.text) == "world and so on"
    assert table.drop_columns("text").equals(run.reveals().to_arrow())
    saved = run.save(tmp_path / "kept")
    several = ol.open_run([tmp_path / "kept", tmp_path / "kept"])
    assert saved.reveals(text=True).to_arrow(["text"]).num_rows == 54
    assert several.reveals(text=True).to_arrow(["run", "text"]).num_rows == 108


def test_runs_without_texts_say_so(finished) -> None:
    with pytest.raises(RunError, match="does not store token texts"):
        ol.open_run(finished).reveals(text=True).to_arrow()
