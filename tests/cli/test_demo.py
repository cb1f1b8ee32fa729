"""The first ten minutes: ``orderlens`` without arguments and what ``demo`` prints."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from orderlens.claims.judge import Reading
from orderlens.cli import console, demo
from orderlens.cli.main import TO_TRY, VERBS, main
from orderlens.studies import replicate_plan
from orderlens.studies.replicate_plan import make_plan


def test_without_arguments_five_commands_are_printed(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 10
    assert [line.split("  ")[1] for line in printed.splitlines() if line.startswith("  ")] == list(TO_TRY)
    assert len(TO_TRY) == 5
    assert all(command.split()[1] in VERBS for command in TO_TRY)


def test_the_first_commands_work_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in list(TO_TRY)[:3]:
        assert main(command.split()[1:]) == 0, command
    assert (tmp_path / "first.html").stat().st_size > 100_000
    assert "forced-ar" in capsys.readouterr().out


def test_help_lists_all_verbs(capsys):
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name.split()[0]} " in listed for name in VERBS)


def test_the_opening_says_what_will_happen_and_how_long_it_takes():
    text = demo.opening(make_plan("demo", "tiny"))
    assert "6 texts and 6 questions under 8 orders" in text
    assert "less than 5 minutes" in text
    assert text.count(". ") == 0, "one sentence"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def run_demo(folder, quick_figures):
    """Runs the demo on the exact control and returns what it prints."""

    def run(*options):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), quick_figures(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(replicate_plan, "is_bundled", lambda name: False)
            patch.setattr("orderlens.studies.results.figure_names", lambda _: ["lorenz"])
            assert main(["demo", "--out", str(folder), *options]) == 0
        return text.getvalue()

    return run


def test_the_demo_draws_one_answer_and_ends_with_three_lines(run_demo, folder):
    printed = run_demo()
    assert printed.startswith("The demo repeats the paper's experiments in small")
    sketch, tables = printed.index("One answer, decoded with max-prob"), printed.index("Fixed sequences")
    assert sketch < tables, "drawn while the rest is computed"
    assert "q by step" in printed[sketch:tables]
    end = printed[printed.index("What was found:") :].splitlines()
    found = [line for line in end if line.startswith("- ")]
    assert len(found) == 3
    assert found[0].startswith("- Does the likelihood depend on the order?")
    assert "6 texts cannot decide more" in printed
    assert f"page:     {folder / 'index.html'} (open it in a browser)" in end
    assert "rule: " not in printed, "the long list is in a file"
    assert "rule: " in (folder / "findings.txt").read_text()
    assert len(printed.splitlines()) < 80


def test_a_demo_whose_findings_are_all_decided_says_so():
    assert demo.open_findings(Reading(()), 8) == "0 findings, none left open."


def test_a_sketch_is_coloured_where_the_terminal_has_colours(monkeypatch):
    shown = console.SafeConsole()
    shown.file, shown._color_system, shown._force_terminal = io.StringIO(), 1, True
    monkeypatch.setattr(console, "stdout", shown)
    console.print_sketch("q ▁█ ‹EOS› [red]not markup[/red]")
    text = shown.file.getvalue()
    assert "\x1b[31m▁" in text
    assert "\x1b[32m█" in text
    assert "[red]not markup[/red]" in text


def test_json_prints_one_object_and_no_sketch(run_demo):
    assert json.loads(run_demo("--json"))["page"].endswith("index.html")
