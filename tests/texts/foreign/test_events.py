"""Reveals, edits and remasks: exported, imported, replayed and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import orderlens as ol
from orderlens.errors import DataFileError
from orderlens.rules import parse_policy
from orderlens.rules.catalogue import PRESETS
from orderlens.show.views.replay import canvas
from orderlens.store.export import export_table
from orderlens.store.reader import Run, open_run
from orderlens.texts.foreign import import_run

REVISING = sorted(name for name in PRESETS.names() if parse_policy(name).revise is not None)

NO_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]
"""A failing case takes seconds, so it is reported as found."""


def imported(folder: Path, rows: list[dict], **more: object) -> Run:
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    import_run(folder / "t.jsonl", str(folder / "run"), **more)
    return open_run(folder / "run")


def event(event: str | None, forward: int, position: int, token: int | None = None, **more: object) -> dict:
    row = {"sample": "a", "order": "mine", "temperature": 0, "forward": forward, "position": position}
    row |= {"logq": None if event == "remask" else -0.5} | ({} if token is None else {"token_id": token})
    return row | ({} if event is None else {"event": event}) | more


@given(
    orders=st.lists(st.sampled_from(REVISING), min_size=1, max_size=3, unique=True),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    length=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["csv", "parquet"]),
    tokens=st.booleans(),
)
@settings(
    max_examples=12,
    deadline=None,
    phases=NO_SHRINKING,
)
def test_export_then_import_is_the_identity(
    tmp_path_factory: pytest.TempPathFactory,
    orders: list[str],
    temperature: float,
    length: int,
    seed: int,
    kind: str,
    tokens: bool,
) -> None:
    folder = tmp_path_factory.mktemp("trip")
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed, "out": folder / "one"}
    one = ol.generate("hmm", ["the ", "a sea"], [*orders, "max-prob"], **options)
    file = folder / f"t.{kind}"
    rows = export_table(one, None, file, tokens=tokens)
    import_run(file, str(folder / "two"))
    two = open_run(folder / "two")
    revisions = one.table("revisions").to_arrow()
    assert rows == one.reveals().to_arrow().num_rows + revisions.num_rows
    for name in ("reveals", "revisions"):
        assert one.table(name).to_pandas().equals(two.table(name).to_pandas()), name
    assert one.samples().to_pandas().equals(two.samples().to_pandas())
    names = ["sample_id", "order", "token_ids", "n_requested", "n_passes", *(["text"] if tokens else [])]
    assert one.outputs().to_arrow().select(names).equals(two.outputs().to_arrow().select(names))
    again = folder / f"again.{kind}"
    export_table(two, None, again, tokens=tokens)
    assert again.read_bytes() == file.read_bytes()


def test_the_last_reveal_stays_and_every_other_event_is_a_revision(tmp_path: Path) -> None:
    rows = [
        event("reveal", 0, 4, 1, n_passes=6),
        event(None, 0, 5, 2),
        event("edit", 1, 4, 3, old_logq=-2.0),
        event("remask", 1, 5),
        event("reveal", 2, 5, 7),
        event("remask", 3, 4, 9, logq=float("nan")),
        event("Reveal", 4, 4, 6),
    ]
    run = imported(tmp_path, rows)
    reveals = run.reveals().to_pandas()
    assert reveals[["step", "forward", "position", "token_id", "n_committed"]].to_numpy().tolist() == [
        [0, 2, 5, 7, 1],
        [1, 4, 4, 6, 1],
    ]
    revisions = run.table("revisions").to_arrow().select(["event", "forward", "position", "old_token"])
    assert [tuple(row.values()) for row in revisions.to_pylist()] == [
        ("reveal", 0, 4, None),
        ("reveal", 0, 5, None),
        ("edit", 1, 4, 1),
        ("remask", 1, 5, 2),
        ("remask", 3, 4, 3),
    ]
    assert run.table("revisions").to_arrow()["logq"].to_pylist() == [-0.5, -0.5, -0.5, None, None]
    assert run.table("revisions").to_arrow()["old_logq"].to_pylist() == [None, None, -2.0, None, None]
    assert run.outputs().to_arrow()["token_ids"].to_pylist() == [[6, 7]]
    assert run.samples().to_arrow()["n_passes"].to_pylist() == [6]
    view = run.sample("a").traces[0]
    states = [[(cell.token_id, cell.state) for cell in canvas(view, forward)] for forward in range(5)]
    assert states == [
        [(1, "new"), (2, "new")],
        [(3, "edited"), (2, "remasked")],
        [(3, "earlier"), (7, "new")],
        [(3, "remasked"), (7, "earlier")],
        [(6, "new"), (7, "earlier")],
    ]


def test_an_edit_after_the_last_reveal_changes_the_text_alone(tmp_path: Path) -> None:
    rows = [event("reveal", 0, 0, 1, text="a"), event("edit", 1, 0, 2, text="b")]
    run = imported(tmp_path, rows)
    assert run.reveals().to_arrow()["token_id"].to_pylist() == [1]
    assert run.outputs().to_arrow()["text"].to_pylist() == ["b"]
    assert run.samples().to_arrow()["n_passes"].to_pylist() == [2]


def test_a_position_left_masked_has_no_reveal(tmp_path: Path) -> None:
    rows = [event("reveal", 0, 0, 1), event("reveal", 0, 1, 2), event("remask", 1, 1)]
    rows += [row | {"sample": "b"} for row in (event("reveal", 0, 0, 1), event("remask", 1, 0))]
    run = imported(tmp_path, rows)
    assert run.reveals().to_arrow()["position"].to_pylist() == [0]
    assert run.outputs().to_arrow()["sample_id"].to_pylist() == ["a"]
    assert run.table("revisions").to_arrow()["event"].to_pylist() == ["reveal", "remask"]
    assert any("1 trace left out" in note for note in run.spec["imported"]["notes"])


def test_a_missing_remask_is_reported(tmp_path: Path) -> None:
    run = imported(tmp_path, [event("reveal", 0, 0, 1), event("reveal", 2, 0, 3)])
    assert run.table("revisions").to_arrow()["event"].to_pylist() == ["reveal"]
    assert any("1 reveal of positions that were not masked" in note for note in run.spec["imported"]["notes"])


def test_steps_alone_rank_events(tmp_path: Path) -> None:
    rows = [event("reveal", 0, 0, 1), event("remask", 0, 0), event("reveal", 0, 0, 2)]
    ranked = [{name: row[name] for name in row if name != "forward"} for row in rows]
    run = imported(tmp_path, [row | {"step": step} for step, row in enumerate(ranked)])
    assert run.table("revisions").to_arrow()["forward"].to_pylist() == [0, 1]
    assert run.reveals().to_arrow()["forward"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([event("edit", 0, 0, 1)], "line 1 .*: edit of position 0, which holds no token"),
        (
            [event("reveal", 0, 0, 1), event("remask", 1, 1)],
            "line 2 .*: remask of position 1, which holds",
        ),
        ([event("reveal", 0, 0, 1), event("erase", 1, 0)], "line 2: event is 'erase'; it is reveal, edit or"),
        ([event("reveal", 0, 0, 1), event("edit", 1, 0, 2, logq=None)], "line 2: logq is missing"),
        ([event("reveal", 0, 0, 1), event("edit", 1, 0)], "line 2 .*: token_id is missing"),
        ([event("reveal", 0, 0, 1), event("remask", 0, 0)], "line 2 .*: position 0 .* in the same pass"),
        ([event("reveal", 0, 0, 1), event("remask", 1, 0)], "no reveal that stays"),
        (
            [event("reveal", 0, 0, 1, step=1), event("reveal", 1, 1, 1, step=0)],
            "line 2 .*: step 0 comes after step 1 of line 1",
        ),
        ([event(None, 0, 0, 1), event(None, 1, 0, 2)], "line 2 .*: position 0 also occurs .* column event"),
    ],
)
def test_events_that_do_not_add_up_are_refused(tmp_path: Path, rows: list[dict], message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        imported(tmp_path, rows)
    assert not (tmp_path / "run").exists()


def test_a_run_without_revisions_is_exported_as_before(tmp_path: Path) -> None:
    run = ol.generate("hmm", ["the "], "max-prob", max_new_tokens=4, temperature=0.0, out=tmp_path / "one")
    for name, table in (("a.arrow", None), ("b.arrow", "reveals")):
        export_table(run, table, tmp_path / name)
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()


def test_several_runs_keep_their_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ol.generate("hmm", ["the "], "remdm", max_new_tokens=6, temperature=1.0, out=tmp_path / name)
    export_table(open_run([tmp_path / "one", tmp_path / "two"]), None, tmp_path / "t.arrow")
    table = pa.ipc.open_file(tmp_path / "t.arrow").read_all()
    assert set(table["run"].to_pylist()) == {"one", "two"}
    assert table["event"].to_pylist().count("remask") > 0
