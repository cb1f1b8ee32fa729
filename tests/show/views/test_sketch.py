"""One sample drawn as text and as HTML: numbers under their tokens, worst steps, nothing unsafe."""

from __future__ import annotations

import re

import numpy as np
import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.common.plaintext import UNSAFE
from orderlens.errors import RunError
from orderlens.show.views.sketch import LEVELS, level, sparkline
from orderlens.testing import make_run, make_trace

LOGQ = np.log([0.9, 0.2, 0.6, 0.05, 0.8, 0.99])
HOSTILE = "<script>alert(1)</script>\u202e\x00\x1b[31m👩\n"


@pytest.fixture(scope="module")
def run():
    return make_run(
        [
            make_trace("a", "max-prob", LOGQ, path=[2, 0, 1, 5, 4, 3], tokens=[5, 6, 7, 8, 9, 4]),
            make_trace("a", "forced-ar", LOGQ, tokens=[5, 6, 7, 8, 9, 4]),
            make_trace("a", "drawn", LOGQ, tokens=[5, 6, 7, 8, 4, 9], temperature=1.0),
        ],
        outputs=[{"sample_id": "a", "order": "max-prob", "prompt_text": f"say {HOSTILE}"}],
        tokens=[
            {"token_id": 5, "piece": " five"},
            {"token_id": 6, "piece": HOSTILE},
            {"token_id": 7, "piece": "海"},
        ],
    )


def test_numbers_and_bars_stand_under_their_tokens(run) -> None:
    lines = repr(run.sample("a").show("max-prob")).splitlines()
    grid = lines[lines.index("") + 1 :][:3]
    assert [line.split()[-3:] for line in grid] == [["#8", "#9", "#4"], ["6", "5", "4"], ["█", "▇", "▁"]]
    assert grid[0].split()[0] == "·five"
    assert grid[1].split()[:2] == ["max-prob", "2"]
    assert "max-prob: 6 tokens in 6 passes, mean log q" in "\n".join(lines)


def test_tokens_past_the_requested_length_are_counted_apart() -> None:
    generated = ol.generate("hmm", "hello", "forced-ar", max_new_tokens=4, block_size=8, anchor="prompt")
    (sample_id,) = generated.samples().to_pandas()["sample_id"]
    text = repr(generated.sample(sample_id).show("forced-ar"))
    assert "forced-ar: 4 tokens and 4 past the requested length in 8 passes, mean log q" in text


def test_the_worst_steps_come_first_and_the_rest_is_left_out(run) -> None:
    text = repr(run.sample("a").show("forced-ar"))
    found = re.findall(r"reveal (\d): \S+ at position (\d), q = ([\d.]+), (\d+)%", text)
    total = -LOGQ.sum()
    assert found == [
        ("4", "3", "0.05", f"{-LOGQ[3] / total:.0%}"[:-1]),
        ("2", "1", "0.2", f"{-LOGQ[1] / total:.0%}"[:-1]),
    ]


def test_two_orders_share_a_line_of_tokens_where_they_agree(run) -> None:
    sample = run.sample("a")
    assert repr(sample.show("max-prob", "forced-ar")).count("海") == 1
    both = repr(sample.show("max-prob", against="forced-ar"))
    assert "they first differ in pass 1; the texts are equal" in both
    other = repr(sample.show("forced-ar", "drawn"))
    assert other.count("海") == 2
    assert "the texts first differ at position 4" in other
    with pytest.raises(RunError, match="has no trace 'mine'"):
        sample.show("mine")


@pytest.mark.parametrize("width", [40, 60, 100])
def test_lines_keep_to_the_width(run, width: int) -> None:
    from rich.cells import cell_len

    text = run.sample("a").show("max-prob", "forced-ar").text(width)
    grid = text.split("\n\n")[1:-3]
    assert all(cell_len(line) <= width for part in grid for line in part.splitlines())


def test_heights_are_those_of_q(run) -> None:
    assert [level(float(np.log(q))) for q in (0.01, 0.13, 0.49, 0.51, 0.99, 1.0)] == list("▁▂▄▅██")
    assert level(float("nan")) == "?"
    trace = run.sample("a").trace("forced-ar")
    assert sparkline(trace) == "".join(LEVELS[min(int(np.exp(x) * 8), 7)] for x in LOGQ)
    assert sparkline(trace, 2) == level(LOGQ[1]) + level(LOGQ[3])


def test_nothing_unsafe_is_drawn(run) -> None:
    sample = run.sample("a")
    for text in (repr(sample.show()), sample._repr_html_(), repr(sample)):
        assert not UNSAFE.search(text)
    page = sample._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<sub>") == 18
    assert page.count("<rect") == 18


def test_an_id_with_line_ends_stays_on_its_line() -> None:
    run = make_run([make_trace("a\nq by step\t1", "forced-ar", LOGQ)])
    assert repr(run.sample("a\nq by step\t1").show()).splitlines()[0] == r"sample a\nq by step\t1"


def test_reprs_are_short(run) -> None:
    assert repr(run.sample("a").trace("drawn")).startswith("TraceView('drawn")
    assert len(repr(run.sample("a"))) < 300


def test_the_verb_draws_samples(run, tmp_path, capsys) -> None:
    run.save(tmp_path / "run")
    place = str(tmp_path / "run")
    assert main(["runs", "show", place, "--sample", "a", "--order", "max-prob", "--order", "forced-ar"]) == 0
    said = capsys.readouterr().out
    assert "they first differ in pass 1" in said
    assert "\x1b" not in said
    assert main(["runs", "show", place, "--sample", "a", "--json"]) == 0
    assert '"traces"' in capsys.readouterr().out
    for wrong, words in (
        (["--sample", "zz"], "there is no sample 'zz' in run; there are "),
        (["--sample", "a", "--order", "mine"], "no trace of order 'mine'"),
        (["--order", "max-prob"], "--order needs --sample"),
        (["--film", "x.svg"], "--film needs --sample"),
    ):
        assert main(["runs", "show", place, *wrong]) == 2
        assert words in capsys.readouterr().err


@pytest.fixture(scope="module")
def changed():
    """A sample whose second token was replaced in pass 3, its third remasked before; EOS last."""
    key = {"sample_id": "a", "order": "max-prob+edit=0.9"}
    rows = [
        {"event": "reveal", "forward": 0, "position": 2, "old_token": None, "new_token": 8, "logq": -0.5},
        {"event": "remask", "forward": 1, "position": 2, "old_token": 8, "new_token": None, "logq": None},
        {"event": "edit", "forward": 3, "position": 1, "old_token": 6, "new_token": 9, "logq": -0.1},
    ]
    trace = make_trace("a", "max-prob+edit=0.9", LOGQ[:4], tokens=[5, 6, 7, 0])
    tokens = [{"token_id": n, "piece": f" t{n}"} for n in (5, 6, 7, 8, 9)]
    revisions = [key | {"old_logq": None} | row for row in rows]
    return make_run([trace], revisions=revisions, tokens=tokens).sample("a")


def test_what_was_changed_and_what_ends_the_text_is_marked(changed) -> None:
    text = repr(changed.show())
    grid = text.split("\n\n")[1].splitlines()
    assert grid[0].split() == ["·t5", "·t9", "·t7", "‹EOS›"]
    assert grid[1].split()[1:] == ["1", "2*", "3*", "4"]
    assert "2 changes at 2 positions (*)" in text
    assert "  pass 2: ·t8 remasked at position 2\n  pass 4: ·t6 became ·t9 at position 1" in text
    page = changed._repr_html_()
    assert page.count("*</sub>") == 2
    assert "changed 1 times" in page
    assert "‹EOS›" in page
