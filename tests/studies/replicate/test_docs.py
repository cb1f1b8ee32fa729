"""The guide: its commands use options that exist, it names every file and finding, its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orderlens.cli.main import main
from orderlens.studies.replicate_plan import ReplicatePlan

GUIDE = (Path(__file__).parents[3] / "docs" / "replicate.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip(" &").removeprefix("$ orderlens ").split()
    for line in GUIDE.splitlines()
    if line.startswith("$ orderlens ")
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_of_the_guide_exists(command, capsys):
    assert main([command[0], "--help"]) == 0
    known = capsys.readouterr().out
    for word in command[1:]:
        assert not word.startswith("--") or word in known
    if "--stages" in command:
        assert set(command[command.index("--stages") + 1].split(",")) <= set(ReplicatePlan.stages)


def test_the_guide_names_every_finding_and_every_folder(replication):
    for finding in replication.reading.findings:
        assert f"| {finding.id} |" in GUIDE
    for path in replication.folder.iterdir():
        assert f"`{path.name}" in GUIDE
    for path in (replication.folder / "runs").iterdir():
        assert f"`runs/{path.name.partition('-')[0]}" in GUIDE


@pytest.mark.slow
def test_the_guides_example_runs(tmp_path, monkeypatch, capsys):
    code = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orderlens.figures.catalogue.FORMATS", ("svg", "png"))
    exec(code.replace("limit=20", "limit=8, temperatures=(1.0,)"), {})
    assert "chain-rule not supported" in capsys.readouterr().out
