"""From traces to tables: ids and texts of tokens, outputs, blocks, verdicts, likelihoods, units."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from orderlens.errors import DataFileError, OrderLensError, UserInputError
from orderlens.store.reader import Run, open_run
from orderlens.texts.foreign import import_run

BASE = {"id": "a", "order": "max-prob"}


def imported(tmp_path: Path, rows: list[dict], **more: object) -> Run:
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    import_run(file, str(tmp_path / "run"), **more)
    return open_run(tmp_path / "run")


def trace(n: int, **columns: list) -> list[dict]:
    """Return rows of one trace; single values hold for all of it."""
    base = BASE | {"step": list(range(n)), "logq": [-1.0] * n} | columns
    return [
        {name: value[i] if isinstance(value, list) else value for name, value in base.items()}
        for i in range(n)
    ]


def test_texts_alone_are_numbered_as_they_appear(tmp_path: Path) -> None:
    run = imported(tmp_path, trace(4, text=["sea", " is", "sea", None], position=[2, 0, 1, 3]))
    assert run.reveals().to_arrow()["token_id"].to_pylist() == [0, 1, 0, -1]
    assert run.table("tokens").to_pandas().set_index("token_id")["piece"].to_dict() == {0: "sea", 1: " is"}
    (output,) = run.outputs().to_arrow().to_pylist()
    assert output["text"] == " isseasea"
    assert output["token_ids"] is None, "made-up numbers are no tokens of a model"


def test_ids_with_texts_are_kept_and_must_agree(tmp_path: Path) -> None:
    run = imported(tmp_path, trace(3, token_id=[7, 9, 7], text=["x", "y", "x"]))
    (output,) = run.outputs().to_arrow().to_pylist()
    assert (output["token_ids"], output["text"]) == ([7, 9, 7], "xyx")
    for change, message in (
        (
            {"text": ["x", "y", "z"]},
            r"line 3 .*token 7 is 'z' here and 'x' before; decode each id separately",
        ),
        ({"token_id": [7, None, 7]}, r"line 2 .*token_id is missing; other rows have it"),
    ):
        place = tmp_path / "bad"
        place.mkdir(exist_ok=True)
        with pytest.raises(DataFileError, match=message):
            imported(place, trace(3, **({"token_id": [7, 9, 7], "text": ["x", "y", "x"]} | change)))
        assert not (place / "run").exists()


def test_the_text_ends_before_the_first_eos_in_text_order_and_leaves_overflow_out(tmp_path: Path) -> None:
    rows = trace(
        5,
        token_id=[1, 2, 3, 4, 5],
        text=list("abcde"),
        position=[14, 10, 12, 11, 13],
        is_eos=[False, False, True, False, False],
        is_overflow=[True, False, False, False, False],
    )
    (output,) = imported(tmp_path, rows).outputs().to_arrow().to_pylist()
    assert output["token_ids"] == [2, 4, 3, 5]
    assert output["text"] == "bd"
    assert output["n_requested"] == 4


@pytest.mark.parametrize(
    ("given", "block_size", "blocks"),
    [
        ({}, None, [0, 0, 0, 0]),
        ({"position": [13, 10, 12, 11]}, 2, [1, 0, 1, 0]),
        ({"position": [13, 10, 12, 11]}, 3, [1, 0, 0, 0]),
        ({"position": [13, 10, 12, 11], "block": [5, 4, 5, 4]}, None, [5, 4, 5, 4]),
        ({}, 3, [0, 0, 0, 1]),
    ],
)
def test_blocks_are_counted_from_the_first_position(
    tmp_path: Path, given: dict, block_size: int | None, blocks: list[int]
) -> None:
    run = imported(tmp_path, trace(4, **given), block_size=block_size)
    assert run.reveals().to_arrow()["block"].to_pylist() == blocks
    assert run.spec.get("block_size") == block_size


@pytest.mark.parametrize(
    ("given", "more", "error", "message"),
    [
        (
            {"block": [0, 0]},
            {"block_size": 2},
            UserInputError,
            "has a column for blocks; leave out --block-size",
        ),
        ({"block": [0, None]}, {}, DataFileError, "line 2 .*block is missing; other rows have it"),
        ({}, {"block_size": 0}, UserInputError, "block_size=0"),
        ({}, {"block_size": -4}, UserInputError, "block_size=-4"),
        ({}, {"temperature": -1.0}, UserInputError, "temperature=-1 must be 0 .greedy. or more"),
        ({}, {"temperature": float("nan")}, UserInputError, "temperature=nan must be"),
        ({}, {"columns": {"logq": "nowhere"}}, DataFileError, "has no column 'nowhere'; it has"),
        ({}, {"columns": {"log": "logq"}}, UserInputError, "unknown field 'log'"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    tmp_path: Path, given: dict, more: dict, error: type[OrderLensError], message: str
) -> None:
    with pytest.raises(error, match=message):
        imported(tmp_path, trace(2, **given), **more)
    assert not (tmp_path / "run").exists()


def test_tokens_of_one_pass_are_counted_per_trace(tmp_path: Path) -> None:
    rows = trace(4, forward=[0, 0, 0, 1]) + [row | {"id": "b"} for row in trace(3, forward=[0, 1, 1])]
    frame = imported(tmp_path, rows).reveals().to_pandas()
    assert frame.groupby("sample_id")["n_committed"].apply(list).to_dict() == {
        "a": [3, 3, 3, 1],
        "b": [1, 2, 2],
    }


@pytest.mark.parametrize(
    ("order", "forward", "temperature", "expected"),
    [
        ("max-prob", [0, 1, 2], None, "exact"),
        ("max-prob", [0, 0, 1], None, None),  # the label says one token per pass
        ("max-prob+top=2", [0, 0, 1], None, "exact"),
        ("somebody's own", [0, 1, 2], None, None),
        ("oracle-max-q", [0, 1, 2], None, "none"),
        ("max-prob", [0, 0, 1], 0.7, None),
    ],
)
def test_a_sum_is_a_likelihood_only_where_label_and_trace_say_so(
    tmp_path: Path, order: str, forward: list[int], temperature: float | None, expected: str | None
) -> None:
    run = imported(tmp_path, trace(3, order=order, forward=forward), temperature=temperature)
    (row,) = run.samples().to_arrow().to_pylist()
    assert row["likelihood"] == expected
    assert row["temperature"] == temperature


def test_one_trace_with_sets_takes_the_word_from_all_of_its_label(tmp_path: Path) -> None:
    rows = trace(2, forward=[0, 1]) + [row | {"id": "b"} for row in trace(2, forward=[0, 0])]
    frame = imported(tmp_path, rows).samples().to_pandas()
    assert frame["likelihood"].isna().all()


def test_verdicts_are_one_per_trace_and_only_where_told(tmp_path: Path) -> None:
    rows = [
        row | {"id": name, "correct": correct, "task": "own", "temp": 0}
        for name, correct in (("a", True), ("b", False), ("c", None))
        for row in trace(2)
    ]
    table = imported(tmp_path, rows).table("verdicts").to_pandas()
    assert dict(zip(table["sample_id"], table["correct"], strict=True)) == {"a": True, "b": False}
    assert set(table["grader"]) == {"imported"}
    rows[1]["correct"] = False
    (tmp_path / "other").mkdir()
    with pytest.raises(DataFileError, match="correct differs"):
        imported(tmp_path / "other", rows)


def test_units_hold_whole_traces_and_are_committed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orderlens.texts.foreign.save.UNIT_ROWS", 5)
    rng = np.random.default_rng(0)
    rows = [row | {"id": f"s{k}"} for k in range(7) for row in trace(int(rng.integers(1, 5)), text="x")]
    run = imported(tmp_path, rows)
    assert len(run.reveals()) == len(rows)
    assert len(run.outputs()) == 7
    assert len(run.table("tokens")) == 1
    units = sorted(path.name for path in (tmp_path / "run" / "units").glob("*.json"))
    again = imported(tmp_path, rows)
    assert sorted(path.name for path in (tmp_path / "run" / "units").glob("*.json")) == units
    assert 2 <= len(units) <= 5
    assert again.is_complete


def test_the_spec_tells_the_file_the_orders_and_what_was_read(tmp_path: Path) -> None:
    rows = [
        row | {"order": order, "seed": seed}
        for order, seed in (("random", 3), ("max-prob", None))
        for row in trace(2)
    ]
    spec = imported(tmp_path, rows, model="theirs", temperature=0.7).spec
    assert spec["kind"] == "import"
    assert spec["model"] == {"name": "theirs"}
    assert spec["orders"] == ["max-prob", "random:3"]
    assert spec["temperatures"] == [0.7]
    assert spec["data"]["source"] == "t.jsonl"
    assert spec["data"]["n_samples"] == 1
    assert spec["imported"]["columns"]["sample_id"] == "id"
    assert str(tmp_path) not in json.dumps(spec), "no folder of a machine"
