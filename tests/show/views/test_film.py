"""The film of a decoding: every token appears once, when its pass comes, and nothing in it is unsafe."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from orderlens.cli.main import main
from orderlens.common.plaintext import UNSAFE
from orderlens.show.views.film import Stay, film, stays
from orderlens.testing import make_run, make_trace

LOGQ = np.log([0.9, 0.2, 0.6, 0.05])
HOSTILE = "<script>alert(1)</script>\u202e\x00\x1b[31m"
KEY = {"sample_id": "a", "order": "mine+edit=0.9"}
REVISIONS = [
    {"event": "reveal", "forward": 0, "position": 2, "old_token": None, "new_token": 8, "logq": -0.5},
    {"event": "remask", "forward": 1, "position": 2, "old_token": 8, "new_token": None, "logq": None},
    {"event": "edit", "forward": 3, "position": 1, "old_token": 6, "new_token": 9, "logq": -0.1},
]


@pytest.fixture(scope="module")
def run():
    traces = [
        make_trace("a", "max-prob", LOGQ, path=[2, 0, 1, 3], tokens=[5, 6, 7, 4]),
        make_trace("a", "mine+edit=0.9", LOGQ, tokens=[5, 6, 7, 4]),
    ]
    pieces = [{"token_id": 5, "piece": " five"}, {"token_id": 6, "piece": HOSTILE}]
    return make_run(traces, revisions=[KEY | {"old_logq": None} | row for row in REVISIONS], tokens=pieces)


def test_stays_follow_the_passes(run) -> None:
    plain, revised = (run.sample("a").trace(name) for name in ("max-prob", "mine+edit=0.9"))
    assert [(item.position, item.first, item.until) for item in stays(plain)] == [
        (2, 0, None), (0, 1, None), (1, 2, None), (3, 3, None),
    ]  # fmt: skip
    assert {(item.position, item.token_id, item.first, item.until) for item in stays(revised)} == {
        (0, 5, 0, None),
        (2, 8, 0, 1),
        (1, 6, 1, 3),
        (2, 7, 2, None),
        (1, 9, 3, None),
        (3, 4, 3, None),
    }
    assert stays(plain)[0] == Stay(position=2, token_id=7, step=0, first=0, until=None)


def test_the_end_of_a_long_prompt_stands_on_top(run) -> None:
    outputs = [{"sample_id": "a", "order": "max-prob", "prompt_text": "start " + "word " * 90 + HOSTILE}]
    sample = make_run([make_trace("a", "max-prob", LOGQ)], outputs=outputs).sample("a")
    text = film(sample, [sample.trace("max-prob")])
    lines = [item.text for item in ET.fromstring(text).findall("{*}text[@class='quiet']")]
    assert len(lines) == 3, "two lines of the prompt, one that explains"
    assert lines[0].startswith("… word")
    assert "<script>" in lines[1]
    assert not UNSAFE.search(text.replace("\n", ""))


def test_every_token_has_its_number_and_its_time(run) -> None:
    sample = run.sample("a")
    text = film(sample, [sample.trace("max-prob")])
    root = ET.fromstring(text)
    groups = root.findall(".//{*}g")
    assert [item.get("class") for item in groups] == ["p0", "p1", "p2", "p3"]
    assert [[word.text for word in item.findall("{*}text")] for item in groups][1] == ["·five", "2"]
    starts = [float(re.search(rf"@keyframes p{n}{{0%,([\d.]+)%", text)[1]) for n in range(4)]
    assert starts == sorted(starts)
    assert len(set(starts)) == 4
    opacity = [float(item.find("{*}rect[@class='box']").get("fill-opacity")) for item in groups]
    assert opacity == pytest.approx([0.1, 0.8, 0.4, 0.95], abs=0.006)


def test_what_was_taken_back_is_gone_in_the_still_picture(run) -> None:
    sample = run.sample("a")
    text = film(sample, [sample.trace("mine+edit=0.9")])
    assert ".p0-1{opacity:0;" in text
    assert ".p1-3{opacity:0;" in text
    assert ".p3{animation" in text
    assert "prefers-reduced-motion:reduce" in text


def test_nothing_unsafe_or_foreign_is_in_it(run) -> None:
    text = run.sample("a").show().film()
    ET.fromstring(text)
    assert not UNSAFE.search(text.replace("\n", ""))
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_verb_writes_it(run, tmp_path, capsys) -> None:
    run.save(tmp_path / "run")
    out = tmp_path / "film.svg"
    command = [
        "runs",
        "show",
        str(tmp_path / "run"),
        "--sample",
        "a",
        "--order",
        "max-prob",
        "--film",
        str(out),
    ]
    assert main(command) == 0
    assert str(out) in capsys.readouterr().out
    assert out.read_text("utf-8").startswith("<svg ")
    assert main([*command, "--json", "--overwrite"]) == 0
    assert '"film"' in capsys.readouterr().out


def test_no_reveals_give_an_empty_canvas() -> None:
    sample = make_run([make_trace("a", "max-prob", LOGQ[:1], tokens=[5])]).sample("a")
    assert "<svg" in film(sample, [])


def test_boxes_do_not_overlap_and_words_are_in_the_middle_of_theirs() -> None:
    words = [" a", " rather long word", " of", " an", " uncommonly", " extended", " vocabulary"] * 6
    pieces = [{"token_id": i, "piece": word} for i, word in enumerate(words, 1)]
    trace = make_trace("a", "max-prob", np.full(len(words), -0.1), tokens=list(range(1, len(words) + 1)))
    sample = make_run([trace], tokens=pieces).sample("a")
    drawing = ET.fromstring(film(sample, [sample.trace("max-prob")]))
    width = float(drawing.get("viewBox").split()[2])
    found = drawing.iterfind(".//{*}rect[@class='mask']")
    masks = [tuple(float(item.get(name)) for name in ("x", "y", "width")) for item in found]
    assert len(masks) == len(words)
    assert len({y for _, y, _ in masks}) > 2, "several lines"
    for (x, y, wide), (next_x, next_y, _) in itertools.pairwise(masks):
        assert x >= 0
        assert x + wide <= width
        assert next_y > y or next_x > x + wide
    middles = {round(x + wide / 2, 1) for x, _, wide in masks}
    shown = {float(item.get("x")) for item in drawing.iterfind(".//{*}text[@class='word']")}
    assert shown, "words are centred"
    assert all(min(abs(x - middle) for middle in middles) < 0.11 for x in shown)
    widest = max(masks, key=lambda box: box[2])
    assert widest[2] > 3 * min(masks, key=lambda box: box[2])[2]
