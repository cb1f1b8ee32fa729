"""``generate --live``: the canvas is shown as it fills, and nothing about the run changes."""

from __future__ import annotations

import io
import re

import pytest

import orderlens as ol
from orderlens.cli.console import MASK, SafeConsole, live_progress
from orderlens.cli.main import main
from orderlens.decode.chains import LiveCanvas


class Counter:
    """A sink that counts and remembers what it was shown."""

    def __init__(self) -> None:
        self.steps, self.seen = 0, list[list[LiveCanvas]]()

    def __call__(self, steps: int = 1) -> None:
        self.steps += steps

    def set_total(self, total: int) -> None:
        """Nothing is done with it."""


class Watching(Counter):
    def show_canvas(self, canvases: list[LiveCanvas]) -> None:
        self.seen.append(canvases)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    sink, plain = Watching(), Counter()
    prompts = [ol.Sample(name, "the sea ") for name in ("a", "b")]
    orders = ["forced-ar", "max-prob+top=2"]
    places = [tmp_path_factory.mktemp(name) / "run" for name in ("one", "two")]
    runs = [
        ol.generate("hmm", prompts, orders, max_new_tokens=8, stop_at_eos=False, out=place, progress=found)
        for place, found in zip(places, (sink, plain), strict=True)
    ]
    return sink, plain, runs


def test_watching_changes_nothing(watched) -> None:
    sink, plain, (one, two) = watched
    assert sink.steps == plain.steps
    assert one.reveals().to_pandas().equals(two.reveals().to_pandas())


def test_every_pass_is_shown_and_the_canvas_only_fills(watched) -> None:
    sink, _, (run, _) = watched
    frames = [frame for frame in sink.seen if frame[0].sample_id == "a"]
    assert [canvas.order for canvas in frames[0]] == ["forced-ar", "max-prob+top=2"]
    for which in (0, 1):
        left = [int(frame[which].masked.sum()) for frame in frames]
        assert left == sorted(left, reverse=True)
        assert left[0] == 7 - which
        assert left[-1] == 0
    final = run.outputs().to_pandas().set_index(["sample_id", "order"])["token_ids"]
    assert frames[-1][0].tokens.tolist() == final["a", "forced-ar"].tolist()


def test_frames_are_drawn_safely(watched) -> None:
    console = SafeConsole()
    console.file, console._force_terminal, console._width = io.StringIO(), True, 40
    with live_progress(Counter(), console, lambda token: "\x1b]0;title\x07<b>") as shown:
        for frame in watched[0].seen[:1]:
            shown.show_canvas(frame)
    drawn = console.file.getvalue()
    assert MASK in drawn
    assert "max-prob+top=2, pass 1" in drawn
    assert "\x1b]0" not in drawn
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in drawn.splitlines()]
    assert sum(line.count(MASK) for line in lines) == 7 + 6  # wrapped, not cut
    assert max(map(len, lines)) <= 40


def test_without_a_terminal_it_says_so_and_goes_on(tmp_path, capsys) -> None:
    short = ["generate", "--model", "hmm", "--limit", "1", "--max-new-tokens", "4", "--orders", "forced-ar"]
    assert main([*short, "--live", "--out", str(tmp_path / "run")]) == 0
    assert "--live needs a terminal" in capsys.readouterr().err
    assert main([*short, "--live", "--workers", "2", "--out", str(tmp_path / "more")]) == 2
    assert "leave out --engine and --workers" in capsys.readouterr().err
