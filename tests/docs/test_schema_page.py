"""The lines of docs/schema.md that read a run without OrderLens return the stored rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import orderlens as ol

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
LINES = re.findall(r"^((?:duckdb|polars|datasets)\..*runs/a/.*)$", PAGE, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "runs" / "a"
    samples = ol.load_samples("passages", "hmm", limit=3, prefix_tokens=8, target_tokens=8)
    ol.score("hmm", samples, ["forced-ar", "random:3"], batch_size=1, out=place)
    return place


def rows_of(found: Any) -> list[tuple[Any, ...]]:
    columns = ["sample_id", "order", "step", "logq"]
    if hasattr(found, "fetchall"):
        return list(found.select(*(f'"{name}"' for name in columns)).fetchall())
    if hasattr(found, "rows"):
        return list(found.select(columns).rows())
    return [tuple(row[name] for name in columns) for row in found]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition(".")[0])
def test_each_line_returns_the_rows(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = line.partition(".")[0]
    monkeypatch.setenv("HF_HOME", str(folder.parent / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder.parent / "cache"))
    package = pytest.importorskip(name)
    monkeypatch.chdir(folder.parent.parent)
    more = {"datasets": f", cache_dir={str(folder.parent / 'cache')!r})"}.get(name, ")")
    found = eval(line.removesuffix(")") + more, {name: package})
    expected = ol.open_run(folder).reveals().to_pandas()
    wanted = expected[["sample_id", "order", "step", "logq"]].itertuples(index=False, name=None)
    assert sorted(rows_of(found)) == sorted(wanted)


def test_all_three_are_on_the_page() -> None:
    assert [line.partition(".")[0] for line in LINES] == ["duckdb", "polars", "datasets"]
