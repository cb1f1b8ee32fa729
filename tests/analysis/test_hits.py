"""Independence of greedy successes: the numbers against plain loops, and worlds with known answers."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.analysis import Study
from orderlens.analysis.tables_assumptions import ALL, LAGS, N_BINS, SPANS, measure_hits
from orderlens.claims import read
from orderlens.theory import success_k


def study_of(builders, logs, hits, order="forced-ar"):
    traces = [builders.trace(f"s{i}", order, y) for i, y in enumerate(logs)]
    place = traces[0].column_names.index("is_argmax")
    whole = [t.set_column(place, "is_argmax", pa.array(h)) for t, h in zip(traces, hits, strict=True)]
    return Study(builders.make_run(whole), builders.QUICK)


def drawn(rng, n_texts=60, n=64):
    logs = [-rng.gamma(0.4, 0.8, n) for _ in range(n_texts)]
    return logs, [rng.random(n) < success_k(np.exp(y), 10, 0.8) for y in logs]


def test_numbers_are_those_of_plain_loops():
    """On hmm: every number from the reveals themselves, without the arrays of the table."""
    model = ol.load_model("hmm")
    run = ol.score(model, ol.load_samples("passages", model, limit=5), ["forced-ar", "max-prob"])
    study = Study(run)
    spans, lags = study.tables(["hits"])
    fit = study.tables(["theory"])[1]
    sigma, k = (fit.cell(name, orders="deployable").value for name in ("sigma", "k"))
    rows = run.reveals().to_pandas().sort_values(["order", "sample_id", "step"])
    rows = rows[~rows["is_overflow"]]
    cuts = [float(np.quantile(rows["logq"].clip(upper=0), i / N_BINS)) for i in range(1, N_BINS)]
    cuts = sorted(set(cuts))

    def bin_of(y):
        return sum(y >= cut for cut in cuts)

    tally = {}
    for y, hit in zip(rows["logq"], rows["is_argmax"], strict=True):
        seen = tally.setdefault(bin_of(min(y, 0.0)), [0, 0])
        seen[0] += 1
        seen[1] += bool(hit)
    rate = {place: (hits + 0.5) / (count + 1) for place, (count, hits) in tally.items()}
    mean = {place: hits / count for place, (count, hits) in tally.items()}
    mine = rows[rows["order"] == "max-prob"]
    for span in SPANS:
        whole, by_rate, by_fit = [], [], []
        for _, trace in mine.groupby("sample_id"):
            ys, hit = trace["logq"].tolist(), trace["is_argmax"].tolist()
            for start in range(0, len(ys) - span + 1, span):
                inside = range(start, start + span)
                whole.append(all(hit[i] for i in inside))
                by_rate.append(math.prod(rate[bin_of(ys[i])] for i in inside))
                by_fit.append(math.prod(success_k(math.exp(ys[i]), k, sigma) for i in inside))
        cell = {
            name: spans.cell(name, order="max-prob", span=str(span)).value for name in ("observed", "by_rate")
        }
        assert cell["observed"] == pytest.approx(np.mean(whole), abs=1e-9)
        assert cell["by_rate"] == pytest.approx(np.mean(by_rate), abs=1e-9)
        found = spans.cell("fitted", order="max-prob", span=str(span)).value
        assert found == pytest.approx(np.mean(by_fit), abs=1e-9)
    for lag in LAGS:
        products, squares = [], []
        for _, trace in mine.groupby("sample_id"):
            p = [mean[bin_of(y)] for y in trace["logq"]]
            hit = trace["is_argmax"].tolist()
            z = [(h - q) / math.sqrt(q * (1 - q)) if 0 < q < 1 else 0.0 for h, q in zip(hit, p, strict=True)]
            products += [z[i] * z[i + lag] for i in range(len(z) - lag)]
            squares += [value * value for value in z]
        cell = lags.cell(f"lag_{lag}", order="max-prob").value
        assert cell == pytest.approx(np.mean(products) / np.mean(squares), abs=1e-9)


def test_independent_hits_are_found_independent(builders):
    study = study_of(builders, *drawn(np.random.default_rng(0), 200))
    (finding,) = read(study, "independence").findings
    assert finding.outcome == "supported", finding.lines()


def test_hits_in_runs_are_not(builders):
    """Every trace is lucky or not as a whole, so that its hits go together at equal q."""
    rng = np.random.default_rng(1)
    logs = [-rng.gamma(0.4, 0.8, 64) for _ in range(200)]
    luck = [rng.choice([0.3, 3.0]) for _ in logs]
    hits = [rng.random(64) < np.exp(y / c) for y, c in zip(logs, luck, strict=True)]
    study = study_of(builders, logs, hits)
    (finding,) = read(study, "independence").findings
    assert finding.outcome == "not supported"
    assert measure_hits(study)[ALL].spans[16].log_excess.low > 0


def test_without_a_hit_nothing_is_said_about_their_correlation(builders):
    logs = [-np.random.default_rng(i).gamma(2.0, 2.0, 6) for i in range(12)]
    study = study_of(builders, logs, [np.zeros(6, bool)] * 12)
    (finding,) = read(study, "independence").findings
    assert finding.outcome == "left open", finding.lines()
    assert measure_hits(study)[ALL].lags[1].why == "no hit, or no miss"


def test_oracle_orders_alone_leave_it_open(builders):
    logs, hits = drawn(np.random.default_rng(2), 3)
    study = study_of(builders, logs, hits, "oracle-max-q")
    assert read(study, "independence").findings[0].outcome == "left open"
    assert not study.tables(["hits"])[0].rows[0]["observed"].is_defined


def test_one_order_has_its_own_numbers_and_the_pooled_ones(builders):
    found = measure_hits(study_of(builders, *drawn(np.random.default_rng(3), n_texts=8, n=32)))
    assert set(found) == {"forced-ar", ALL}


def test_undefined_recoveries_say_why(builders):
    """Traces of 6 reveals whose spans all have a miss, and of 3 reveals."""
    spans, lags = study_of(builders, [[-0.1] * 6] * 3, [[True, False] * 3] * 3).tables(["hits"])
    assert spans.cell("log_excess", order=ALL, span="2").why == "no span of 2 reveals was recovered"
    assert spans.cell("log_excess", order=ALL, span="8").why == "no trace has 8 reveals"
    assert np.isfinite(lags.cell("lag_4", order=ALL).value)
    short = study_of(builders, [[-0.1] * 3] * 3, [[True] * 3] * 3).tables(["hits"])[1]
    assert short.cell("lag_4", order=ALL).why == "no trace has more than 4 reveals"
