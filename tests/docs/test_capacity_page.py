"""The page on running holds what its command computes."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.pages import section

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def capacity() -> ModuleType:
    return script("capacity")


def script(name: str) -> ModuleType:
    """Return a benchmark as a module."""
    found = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses, and other scripts, look there
    found.loader.exec_module(module)
    return module


def test_the_page_on_large_models_holds_what_its_command_computes(capacity: ModuleType) -> None:
    split = script("split")
    page = (ROOT / "benchmarks" / "notebook" / "large-models.md").read_text(encoding="utf-8")
    for gpus in (2, 4, 8):
        assert split.row(gpus, split.mini_rate()) in page
    assert split.visits(split.FLASH, 1) == 0.0
    # Eight draws from four groups of eight, a group on each GPU: counted by hand.
    assert split.visits(split.FLASH, 8) == pytest.approx(7 * 0.5 * (1 - 0.75**8))
    assert f"{split.FLASH.n_parameters * 2e-9:.0f} GB" in page


def test_each_row_follows_from_its_speed(capacity: ModuleType) -> None:
    studies = {study.name: study for study in capacity.studies()}
    page = section("running", "How long studies take")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.count("|") == 9 and "tokens/s" not in line and "---" not in line
    ]
    assert {row[0] for row in rows} == set(studies)
    for name, tokens, units, speed, *walls, busy in rows:
        study, rate = studies[name], float(re.match(r"[\d,]+", speed)[0].replace(",", ""))
        assert tokens == f"{study.tokens / 1e6:,.2f} M"
        assert units == ", ".join(f"{study.units(gpus):,}" for gpus in capacity.GPUS)
        assert walls == [capacity.shown(study.hours(rate, gpus)) for gpus in capacity.GPUS]
        assert busy == f"{study.tokens / rate / 3600:,.2f}"


def test_every_gpu_has_work_and_the_last_round_counts_whole(capacity: ModuleType) -> None:
    study = capacity.Study("s", capacity.SEQUENCES, 4, 1_000_000, ())
    assert [study.units(gpus) for gpus in (1, 8, 64, 10_000)] == [4, 16, 64, study.texts]
    assert study.hours(1000, 1) == pytest.approx(64 * study.hours(1000, 64))
    assert study.hours(1000, 10_000) == pytest.approx(study.hours(1000, 1) / study.texts)  # a text each
    uneven = capacity.Study("u", 9, capacity.SEQUENCES, 1_000_000, ())
    assert uneven.hours(1000, 4) == pytest.approx(uneven.hours(1000, 1) / 3)


def test_speeds_are_read_from_the_results(capacity: ModuleType) -> None:
    text = (
        "batch\n| 32 | 2,759 | 1,986 |\n| 128 | 5,607 | 3,935 |\n"
        "| score: 1,920,000 states | 230 s (8,350/s, compiling included) |\n"
        "| generate at T = 0: 512,000 tokens | 67 s (7,640/s) |\n"
        "| sweep: 4,480,000 tokens | 605 s (7,410/s) |\n"
    )
    expected = {"score": 8350.0, "generate": 7640.0, "sweep": 7410.0, "batch 32": 2759.0, "batch 128": 5607.0}
    assert capacity.speeds(text) == expected
    with pytest.raises(SystemExit, match="no longer has the rows of generate, sweep, batch 32, batch 128"):
        capacity.speeds("\n" + text.split("\n")[3] + "\n")
