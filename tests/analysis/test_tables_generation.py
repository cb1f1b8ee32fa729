"""Generated texts: the paper's layout, external perplexity, temperatures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens.analysis import Options, Resampling, Study
from orderlens.analysis.tables_generation import agreement_matrix


def test_generation_table_is_the_papers_layout(graded, builders):
    found = builders.table(graded, "generation")
    frame = graded.samples().to_pandas()
    of_order = frame[frame["order"] == "random"]
    assert [column.name for column in found.columns[1:]] == ["forced-ar", "max-prob", "random"]
    assert found.cell("random", metric="content_var").value == pytest.approx(of_order["content_var"].mean())
    assert found.cell("random", metric="eos_fraction").value == pytest.approx(
        (of_order["n_eos"] / of_order["n"]).mean()
    )
    assert "--evaluator" in found.cell("random", metric="external_ppl").why


class Counting:
    """Gives every character probability ½."""

    name = "coin"

    def token_logprobs(self, pairs):
        return [np.full(len(text), math.log(0.5 if prompt else 0.25)) for prompt, text in pairs]


def test_external_perplexity_joins_the_texts(graded, builders):
    options = Options(resampling=Resampling(20), evaluator=Counting())
    found = builders.table(graded, "generation", options)
    assert found.cell("random", metric="external_ppl_whole").value == pytest.approx(4.0)
    assert found.cell("random", metric="external_ppl").value == pytest.approx(2.0)
    assert found.cell("random", metric="external_ppl_of_mean").value == pytest.approx(2.0)
    assert found.cell("random", metric="external_tokens").value == 120 * len("text 0")
    lengths = Study(graded, options).samples.query("order == 'random'")["n_text"].sum()
    assert found.cell("random", metric="retokenization_ratio").value == pytest.approx(720 / lengths)


def test_temperature_table_says_how_heavy_the_tail_of_perplexity_is(graded, builders):
    class Uneven:
        """Gives text 1 and 3 of the five perplexity 2,000, the others 2."""

        name = "uneven"

        def token_logprobs(self, pairs):
            odd = [int(text.split()[-1]) % 2 for _, text in pairs]
            return [np.full(3, -math.log(2000.0 if one else 2.0)) for one in odd]

    options = Options(resampling=Resampling(5), evaluator=Uneven())
    notes = builders.table(graded, "temperature", options).notes
    assert "T = 0: external PPL with prompt: 40.0 % of texts above 1,000, 60.0 % below 30." in notes
    assert not any("above 1,000" in note for note in builders.table(graded, "temperature").notes)


def test_temperature_table_has_one_row_per_order_and_temperature(builders):
    rng = np.random.default_rng(0)
    traces = [
        builders.trace(f"s{i}", order, -rng.gamma(0.5, 1 + t, 40), temperature=t, sample_seed=0)
        for i in range(4)
        for order in ("forced-ar", "max-prob")
        for t in (0.0, 0.7)
    ]
    run = builders.make_run(traces)
    found = builders.table(run, "temperature")
    assert [(r["order"], r["temperature"]) for r in found.rows] == [
        ("forced-ar", "0"),
        ("forced-ar", "0.7"),
        ("max-prob", "0"),
        ("max-prob", "0.7"),
    ]
    assert "temperature" in Study(run).suited()
    assert builders.table(run, "generation").notes[0].startswith("Temperature 0;")
    warm = builders.table(run, "generation", Options(resampling=Resampling(5), temperature=0.7))
    assert warm.notes[0].startswith("Temperature 0.7;")


def test_agreement_matrix_is_symmetric(scored, builders):
    study = Study(scored, builders.QUICK)
    matrix = agreement_matrix(study, study.scored)
    assert matrix["forced-ar"]["forced-ar"].value == pytest.approx(1.0)
    assert matrix["forced-ar"]["random"] == matrix["random"]["forced-ar"]
    assert abs(matrix["forced-ar"]["random"].value) < 0.4


def test_agreement_looks_at_a_bounded_number_of_samples(scored, monkeypatch, builders):
    monkeypatch.setattr("orderlens.analysis.tables_generation.MAX_SAMPLES", 5)
    study = Study(scored, builders.QUICK)
    assert agreement_matrix(study, study.scored)["forced-ar"]["max-prob"].n == 5
