"""The examples of docs/import.md run, and the page names every field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orderlens.store.reader import open_run
from orderlens.texts.foreign.rows import ALIASES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "import.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_recording_and_wrapping_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    recording, wrapping = EXAMPLES
    exec(recording, {})
    run = open_run(tmp_path / "runs" / "mine")
    trace = run.trace("first", "recorded").to_pandas()
    assert trace["position"].tolist() == list(range(3, 11))
    assert trace["forward"].tolist() == list(range(8))
    assert run.table("verdicts").to_arrow()["correct"].to_pylist() == [True]
    names: dict[str, object] = {}
    exec(wrapping, names)
    assert len(names["run"].samples().to_arrow()) == 3  # type: ignore[attr-defined]


def test_the_page_names_fields_that_exist() -> None:
    assert all(f"`{field}`" in PAGE for field in ALIASES)
