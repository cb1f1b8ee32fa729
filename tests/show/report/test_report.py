"""The report is one file without addresses, shows hostile text as text, and answers three questions."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re

import numpy as np
import pytest

from orderlens.analysis import Options, Study
from orderlens.analysis.table import Column, Table
from orderlens.claims.checks import OUTCOMES, Check, CheckResult, ContextNumber
from orderlens.claims.judge import Finding, Reading
from orderlens.figures.catalogue import DrawnFigure
from orderlens.metrics.estimate import Estimate, Resampling
from orderlens.show.report.build import policies, report
from orderlens.show.report.page import Packed, Page, picture, write_report
from orderlens.show.report.questions import Question
from orderlens.testing import make_run, make_trace

HOSTILE = "<script>alert(1)</script>\"&'<img src=x onerror=y>\u202e\x00"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, read_html):
    folder = tmp_path_factory.mktemp("page")
    drawing = folder / "figures" / "one.svg"
    drawing.parent.mkdir()
    drawing.write_text(f"<svg xmlns='http://www.w3.org/2000/svg'><text>{'x' * 10}</text></svg>")
    columns = (Column("value", HOSTILE), Column("text", "text"))
    row = {"order": HOSTILE, "value": Estimate.undefined(HOSTILE), "text": HOSTILE}
    findings = [
        Finding(
            "v",
            HOSTILE,
            (Check(HOSTILE, Estimate(1.0), result=CheckResult(word, why=HOSTILE)),),
            HOSTILE,
            rule=HOSTILE,
            numbers=(ContextNumber(HOSTILE, Estimate(1.0), HOSTILE),),
            remarks=(HOSTILE,),
        )
        for word in OUTCOMES
    ]
    page = Page(
        HOSTILE,
        [HOSTILE],
        [Question("q", HOSTILE, HOSTILE, HOSTILE, HOSTILE, note=HOSTILE)],
        Reading(tuple(findings)),
        [HOSTILE],
        [picture(DrawnFigure("one", HOSTILE, (drawing,))), picture(DrawnFigure("two", "two", why=HOSTILE))],
        [Table("t", HOSTILE, ("order",), columns, (row,), (HOSTILE,))],
        {HOSTILE: {"spec": {"kind": HOSTILE, "orders": [HOSTILE]}}},
        Packed("AAAA", HOSTILE),
        headlines=[HOSTILE],
        linked=True,
    )
    return read_html(write_report(folder / "index.html", page).read_text(encoding="utf-8"))


def test_hostile_text_stays_text(hostile):
    assert hostile.tags.count("script") == 2, "the packed samples and our own script"
    assert hostile.tags.count("img") == 1
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]
    shown = " ".join([*hostile.text, *(str(value) for _, value in hostile.attributes)])
    assert "<script>alert(1)</script>" in shown
    assert not {"\u202e", "\x00"} & set(shown), "what autoescaping lets through is spelt out"
    assert "\\u202e\\x00" in shown


def test_nothing_is_fetched_and_only_our_own_script_may_run(hostile):
    places = [value for name, value in hostile.attributes if name in ("src", "href")]
    assert all(value.startswith(("data:image/", "data:text/csv", "figures/", "#")) for value in places)
    policy = next(value for _, value in hostile.attributes if value and "default-src 'none'" in value)
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    style, _, script = hostile.raw
    assert allowed == {
        base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (style, script)
    }
    assert "unsafe" not in policy


def test_each_outcome_has_its_word_and_its_rule(hostile):
    text = " ".join(hostile.text)
    for word in OUTCOMES:
        assert f"{word.capitalize()}: 1 check" in text
    assert text.count("Rule: <script>") == len(OUTCOMES)


@pytest.fixture(scope="module")
def written(study, tmp_path_factory, quick_figures):
    path = tmp_path_factory.mktemp("report") / "report.html"
    tables = [
        "fixed-sequence",
        "coherence",
        "within-cell",
    ]  # the theory's takes seconds and is tested elsewhere
    with quick_figures():
        return report(study, path, samples=3, figures=["fixed-sequence", "temperature"], tables=tables)


def test_a_report_of_runs_holds_answers_samples_tables_and_provenance(written, read_html):
    page = read_html(written.read_text(encoding="utf-8"))
    scrolling = re.findall('<div class="scroll"[^>]*>', written.read_text(encoding="utf-8"))
    assert scrolling
    assert all('tabindex="0" role="region" aria-label="' in box for box in scrolling)
    text = " ".join(page.text)
    for part in (
        "Does the likelihood depend on the order?",
        "How even is the certainty along the path?",
        "Does Var tell correct from wrong answers?",
        "3 of 6 samples, evenly from the highest to the lowest mean Var",
        "Fixed sequences",
        "Provenance",
        "Association is not causation",
    ):
        assert part in text
    names = {value for name, value in page.attributes if name == "id"}
    assert {"fixed-sequence", "table-fixed-sequence", "table-within-cell"} <= names
    assert {"glossary", "term-var", "term-noise-floor", "term-range-of-means", "term-var-gap"} <= names
    assert ("href", "#term-range-of-means") in page.attributes, "the row range_of_means links to its meaning"
    for name, value in page.attributes:
        assert name != "href" or not value.startswith("#") or value[1:] in names, "every link leads somewhere"
    charts = [value for name, value in page.attributes if (name, value) == ("class", "chart")]
    assert len(charts) == 3, "a picture for each question"
    kept = [value for name, value in page.attributes if name == "href" and value.startswith("data:text/csv")]
    assert base64.b64decode(kept[0].partition(",")[2]).decode().startswith("table,order,kind,")
    labels = [value for name, value in page.attributes if name == "alt"]
    assert any(label.startswith("Mean log q per token by order: ") for label in labels)


def test_the_packed_samples_are_whole(written):
    packed = re.search(r'id="samples-data">([^<]+)<', written.read_text(encoding="utf-8"))
    bundle = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert len(bundle["samples"]) == 3
    assert len(bundle["rows"]) == sum(len(item["traces"]) for item in bundle["samples"]) == 3 * 6
    assert bundle["catalogue"]["graded"] is True
    assert bundle["catalogue"]["terms"]["gap"]["term"] == "Gap of a text"
    sample = bundle["samples"][0]
    assert {item["label"] for item in sample["traces"]} >= {"forced-ar", "max-prob+top=4, T = 0"}
    assert len(sample["divergences"]) == 6 * 5 // 2


def test_hostile_runs_give_a_harmless_report(evil_study, tmp_path, read_html, quick_figures):
    with quick_figures():
        path = report(evil_study, tmp_path / "r.html", samples=2, figures=["unmask"])
    page = read_html(path.read_text(encoding="utf-8"))
    assert page.tags.count("script") == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    shown = " ".join([*page.text, *(str(value) for _, value in page.attributes)])
    assert not {"\u202e", "\x00", "\x1b"} & set(shown)


def test_without_samples_no_text_is_in_the_file(evil_study, tmp_path, read_html):
    text = report(evil_study, tmp_path / "r.html", samples=0, figures=[]).read_text(encoding="utf-8")
    assert "answer &lt;script" not in text
    assert "ask &lt;script" not in text
    assert read_html(text).tags.count("script") == 0
    assert "This report was written without samples (--samples 0)" in text


def test_two_models_get_tables_and_figures_but_no_common_findings(tmp_path):
    for name in ("one", "two"):
        traces = [make_trace("a", order, [-0.1, -2.0], temperature=0.0) for order in ("forced-ar", "random")]
        spec = {"kind": "generate", "model": {"name": name, "digest": name}}
        make_run(traces, spec=spec).save(tmp_path / name)
    study = Study.open(tmp_path, Options(resampling=Resampling(10, 0)))
    text = report(study, tmp_path / "r.html", samples=1, figures=[]).read_text(encoding="utf-8")
    assert "Findings are about one model at a time" in text
    assert "Model one, two" in text
    assert "All samples: 1." in text, "two runs with one sample of one prompt"


def test_tokens_past_the_requested_length_count_where_passes_do():
    """One token per pass is one token per pass, however far the last block reaches."""
    logq = np.log(np.full(6, 0.5))
    passes = {"max-prob": range(6), "max-prob+top=2": [0, 0, 1, 1, 2, 2]}
    traces = [
        make_trace("s", order, logq, forward=list(forward), temperature=0.0, n_requested=4)
        for order, forward in passes.items()
    ]
    pace = {row["order"]: row["n"] / row["passes"] for row in policies(Study(make_run(traces)))}
    assert pace == {"max-prob": 1, "max-prob+top=2": 2}
