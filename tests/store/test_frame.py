"""A frame shows itself: a few rows, how many there are, and nothing that could steer a terminal."""

from __future__ import annotations

import pyarrow as pa

import orderlens as ol
from orderlens.common.plaintext import WIDTH
from orderlens.store.frame import Frame
from orderlens.testing import make_run, make_trace


def frame() -> Frame:
    rows = pa.table({"id": [f"s{i}" for i in range(9)], "mean": [0.1234567891] * 8 + [None]})
    return Frame.of(rows)


def test_the_head_is_a_frame() -> None:
    assert frame().head(2).to_arrow().to_pydict() == {"id": ["s0", "s1"], "mean": [0.1234567891] * 2}


def test_text_shows_the_first_rows() -> None:
    lines = repr(frame()).splitlines()
    assert lines[0] == "9 rows × 2 columns; the first 5"
    assert lines[1].split() == ["id", "mean"]
    assert lines[2].split() == ["s0", "0.123457"]
    assert len(lines) == 7


def test_columns_that_do_not_fit_are_named() -> None:
    wide = Frame.of(pa.table({f"a_long_name_{i}": ["x" * 50] for i in range(12)}))
    lines = repr(wide).splitlines()
    assert max(map(len, lines[:-1])) <= WIDTH
    assert lines[-1].startswith("… and 8 more columns: a_long_name_4,")


def test_empty_columns_give_room_to_others() -> None:
    lines = repr(Frame.of(pa.table({"nothing": pa.nulls(2), "x": [1, 2]}))).splitlines()
    assert [line.split() for line in lines[1:4]] == [["x"], ["1"], ["2"]]
    assert lines[4] == "… and 1 more columns: nothing"


def test_html_escapes_what_is_data() -> None:
    shown = Frame.of(pa.table({"text": ["<b>&\x1b[31m"]}))._repr_html_()
    assert "&lt;b&gt;&amp;\\x1b[31m" in shown
    assert "1 row × 1 column" in shown


def test_controls_are_shown_as_escapes() -> None:
    assert "\\x1b[31m\\u202e\\n" in repr(Frame.of(pa.table({"text": ["\x1b[31m\u202e\n"]})))


def test_no_rows() -> None:
    empty = Frame.of(pa.table({"id": pa.array([], pa.string())}))
    assert repr(empty).splitlines() == ["0 rows × 1 column", "id"]
    assert "<th>id</th>" in empty._repr_html_()


def test_frames_of_a_run(tmp_path) -> None:
    run = ol.generate("hmm", ["a", "b"], "max-prob", max_new_tokens=40, out=tmp_path / "run")
    n_rows = len(run.reveals())
    assert repr(run.reveals()).startswith(f"{n_rows} rows × ")
    assert run.reveals().head(3).to_arrow().equals(run.reveals().to_arrow().slice(0, 3))
    assert repr(run.samples()).startswith("2 rows")


def test_a_run_shows_what_it_is_and_its_first_traces() -> None:
    hostile = "<img src=x>\x1b[31m"
    run = make_run(
        [make_trace(hostile, "max-prob", [-0.5, -1.5]), make_trace(hostile, "random", [-1.0], seed=3)]
    )
    page = run._repr_html_()
    assert page.startswith("<div><b>memory</b>: run, 3 reveals, complete")
    assert page.count("<tr>") == 3
    assert "<th>mean</th>" in page
    assert "<th>temperature</th>" not in page, "empty columns say nothing"
    assert "<img" not in page
    assert "\x1b" not in page
