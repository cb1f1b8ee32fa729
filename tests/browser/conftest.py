"""One Chromium and one viewer for all tests in a browser; skipped, with the reason, where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orderlens.store.reader import open_run
from orderlens.testing import make_run, make_trace

AXE = Path(__file__).parents[2] / "frontend/node_modules/axe-core/axe.min.js"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _chromium() -> str | None:
    return os.environ.get("ORDERLENS_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    with sync_api.sync_playwright() as tools:
        try:
            found = tools.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        except sync_api.Error as error:
            line = str(error).splitlines()[0]
            pytest.skip(f"no Chromium ({line}); 'make browser' installs one, or set ORDERLENS_CHROMIUM")
        yield found
        found.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory, made_run):
    """Folders of a plain run, a hostile one, and one whose policy changes tokens."""
    folder = tmp_path_factory.mktemp("runs")
    made_run(8, 24).save(folder / "plain")
    made_run(3, evil=True, scored=False).save(folder / "evil")
    key = {"sample_id": "changed", "order": "max-prob+edit=0.9", "temperature": 0.0}
    logq = np.log([0.9, 0.2, 0.6, 0.05])
    trace = make_trace(
        "changed", key["order"], logq, tokens=[5, 6, 7, 8], forward=[0, 1, 1, 4], temperature=0.0
    )
    revisions = [
        {"event": "edit", "forward": 3, "position": 1, "old_token": 6, "new_token": 4, "logq": -0.1},
        {"event": "reveal", "forward": 1, "position": 3, "new_token": 9, "logq": -0.3},
        {"event": "remask", "forward": 2, "position": 3, "old_token": 9, "old_logq": -2.0},
    ]
    make_run([trace], revisions=[key | item for item in revisions]).save(folder / "revised")
    return folder


@pytest.fixture(scope="session")
def address(browser, runs):
    """Address of ``orderlens view`` over all runs, started as a user starts it."""
    command = [sys.executable, "-m", "orderlens", "view", str(runs), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline()]
        while lines[-1] and lines[-1].rstrip() != "}":
            lines.append(process.stdout.readline())
        yield json.loads("".join(lines))["address"]
        process.terminate()
        assert process.wait() == 0


@pytest.fixture(scope="session")
def reports(browser, runs, tmp_path_factory, quick_figures):
    """Files of a plain and of a hostile report."""
    from orderlens.analysis import Options, Study
    from orderlens.metrics.estimate import Resampling
    from orderlens.show.report.build import report

    folder = tmp_path_factory.mktemp("reports")
    options = Options(resampling=Resampling(10, 0))
    for name, figures in (("evil", []), ("plain", ["reveal-order"])):
        run = open_run(runs / name)
        tables = ["fixed-sequence", "coherence", "within-cell"] if name == "plain" else ["within-cell"]
        with quick_figures():
            report(Study(run, options), folder / f"{name}.html", samples=3, figures=figures, tables=tables)
    return folder


@pytest.fixture
def page(browser):
    """A fresh page that fails the test on an error, a dialog, or a request that leaves this machine."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    opened.on("console", lambda line: wrong.append(line.text) if _is_bad(line) else None)
    opened.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    opened.on("request", lambda request: None if _is_here(request.url) else wrong.append(request.url))
    opened.set_default_timeout(60_000)  # a busy machine must not fail a test
    yield opened
    context.close()
    assert not wrong


def _is_bad(line) -> bool:
    return line.type in ("error", "warning") and "status of 404" not in line.text  # a link may lead nowhere


def _is_here(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file://", "data:"))


@pytest.fixture
def axe():
    """Return a function that lists the serious findings of axe on a page, of all rules or of some."""
    if not AXE.is_file():
        pytest.skip("needs axe-core ('make frontend' installs it)")

    def serious(page, *rules):
        page.evaluate(AXE.read_text(encoding="utf-8"))
        options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
        found = page.evaluate("options => axe.run(document, options)", options)["violations"]
        return [
            f"{item['id']}: {[node['target'] for node in item['nodes'][:3]]}"
            for item in found
            if item["impact"] in ("serious", "critical")
        ]

    return serious
