"""A census in the report and in the view of a sample."""

from __future__ import annotations

from pathlib import Path

import orderlens as ol
from orderlens.figures.census import RECIPE
from orderlens.show.report.build import report
from orderlens.show.views.plain import plain_sample

SAMPLES = [
    ol.Sample(f"t{i}", "the cat sat on the mat " * 2, "and the dog looked at it from afar") for i in range(3)
]
ORDERS = ["forced-ar", "max-prob", "max-prob+top=2"]


def test_a_trace_says_where_it_is_among_all_orders() -> None:
    census = ol.census("hmm:incoherence=0.4", SAMPLES, span=5, orders=ORDERS)
    rules = census.rules().to_pandas().set_index(["sample_id", "order"])
    view = census.run.sample("t1")
    for trace in view.traces:
        row = rules.loc[("t1", trace.key.order)]
        assert trace.standing is not None
        assert trace.standing.n_orders == 120
        assert trace.standing.share_below == row["share_worse"]
        assert abs(trace.standing.regret - row["regret"]) < 1e-9
    shown = plain_sample(view)["traces"][0]["standing"]
    assert set(shown) == {"share_below", "share_error", "n_orders", "regret"}
    scored = ol.score("hmm", SAMPLES, "forced-ar").sample("t1")
    assert [trace.standing for trace in scored.traces] == [None]


def test_nothing_is_ranked_where_log_p_does_not_depend_on_the_order(tmp_path: Path) -> None:
    study = ol.Study(ol.census("hmm", SAMPLES, span=5, orders=ORDERS).run)
    rules, spans, _ = study.tables(["census"])
    values = {row["quantity"]: row["value"] for row in spans.rows}
    for cell in (rules.rows[0]["share_worse"], values["Var of the likeliest order (nats²)"]):
        assert cell.why == "log P does not depend on the order"
    figure = RECIPE.draw(RECIPE.data(study))
    assert "same log P" in figure.axes[2].texts[0].get_text()


def test_the_report_has_table_figures_and_findings_of_a_census(tmp_path: Path, quick_figures) -> None:
    run = ol.census("hmm:incoherence=0.4", SAMPLES, span=5, orders=ORDERS).run
    with quick_figures():
        report(ol.Study(run), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (
        "Rules among all orders of a span",
        "Local circulation",
        "Greedy confidence orders are near-optimal for the likelihood.",
        "The states of a span and paths through them",
    ):
        assert text in page
