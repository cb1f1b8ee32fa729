"""The recorder of docs/import.md writes what the import reads, and the page names every field."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from orderlens.rules import parse_policy
from orderlens.store.reader import open_run
from orderlens.texts.foreign import import_run
from orderlens.texts.foreign.rows import ALIASES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "import.md").read_text(encoding="utf-8")


def test_the_recorder_and_the_import_fit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, type] = {}
    exec(code, names)
    recorder = names["Recorder"](tmp_path / "t.jsonl", "mine", 9, lambda ids: "abcdefghij"[ids[0]])
    logits = torch.randn((4, 10), generator=torch.Generator().manual_seed(0))
    canvas = [torch.tensor(row) for row in ([9, 9, 9, 9], [9, 3, 9, 1], [9, 3, 2, 1], [0, 3, 2, 1])]
    for before, after in pairwise(canvas):
        recorder.add("a", before, after, logits, start=5)
    recorder.file.close()
    import_run(tmp_path / "t.jsonl", str(tmp_path / "run"))
    run = open_run(tmp_path / "run")
    trace = run.trace("a", "mine").to_pandas()
    assert trace["forward"].tolist() == [0, 0, 1, 2]
    assert trace["position"].tolist() == [6, 8, 7, 5]
    expected = logits.log_softmax(-1)[[1, 3, 2, 0], [3, 1, 2, 0]]
    assert trace["logq"].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert run.sample("a").traces[0].text == "adcb"


def test_the_page_names_fields_and_policies_that_exist() -> None:
    assert all(f"`{field}`" in PAGE for field in ALIASES)
    for spec in re.findall(r'Recorder\("traces.jsonl", "([^"]+)"', PAGE):
        assert parse_policy(spec).spec
