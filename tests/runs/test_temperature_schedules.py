"""Temperature schedules in runs: spelling, spec, resume, units, sums of log q, tables."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import orderlens as ol
from orderlens.common.temperature import TemperatureSchedule, as_temperatures
from orderlens.errors import RunError, UserInputError
from orderlens.runs.spec import Unit

PROMPTS = [ol.Sample(f"s{i}", "") for i in range(3)]


def generate(temperature, out=None, orders="forced-ar,max-prob:select=argmax", **more):
    return ol.generate(
        "hmm", PROMPTS, orders, max_new_tokens=32, temperature=temperature, stop_at_eos=False, out=out, **more
    )


@pytest.mark.parametrize("text", ["0.8:0.4", "position:0.4:0.8"])
def test_the_text_of_a_schedule_is_read_back(text):
    (found,) = as_temperatures(text)
    assert (str(found), float(found)) == (text, 0.6)
    assert str(pickle.loads(pickle.dumps(found))) == text
    unit = Unit.from_json(Unit((), found).to_json())
    assert str(unit.temperature) == text
    assert unit.key() == Unit((), found).key() != Unit((), 0.6).key()


def test_lists_may_mix_numbers_and_schedules():
    found = as_temperatures("0, 0.8:0.2,1")
    assert [str(value) for value in found] == ["0.0", "0.8:0.2", "1.0"]
    assert isinstance(found[1], TemperatureSchedule)


@pytest.mark.parametrize("bad", ["0.8:", ":", "0.8:0.4:0.2", "position:0.4", "pass:1:2", "", None, True])
def test_other_spellings_are_refused(bad):
    with pytest.raises(UserInputError, match=r"must be (a number, START:END|non-empty)"):
        generate(bad)


def test_equal_means_do_not_share_a_run():
    with pytest.raises(UserInputError, match=r"\[0.6, '0.8:0.4'\] must be .* counts as the mean of its ends"):
        generate(["0.6", "0.8:0.4"])


@pytest.mark.parametrize("text", ["1.5:0.4", "position:0.4:1.5"])
def test_log_q_stays_that_of_the_joint_and_tempered_log_q_that_of_each_token(text):
    model, run = ol.load_model("hmm"), generate(text)
    (heat,) = as_temperatures(text)
    for (_, order), trace in run.reveals().to_pandas().groupby(["sample_id", "order"]):
        canvas, joint = np.full(32, model.mask_id), trace.sort_values("position")["token_id"].tolist()
        for place, row in enumerate(trace.sort_values("step").itertuples()):
            log_p = model.log_probs(canvas.tolist())[row.position]
            share = row.position / 31 if heat.by_position else place / 31
            scaled = log_p / (heat.start * (1 - share) + heat.end * share)
            tempered = scaled[row.token_id] - np.log(np.exp(scaled[np.isfinite(scaled)]).sum())
            assert row.tempered_logq == pytest.approx(tempered, abs=1e-9), order
            canvas[row.position] = row.token_id
        assert trace["logq"].sum() == pytest.approx(model.joint_log_prob(joint), abs=1e-9)


def test_schedules_never_mix(tmp_path):
    generate("0.8:0.4", tmp_path / "a")
    generate("0.8:0.4", tmp_path / "a")  # complete: nothing to do
    for other in ("0.4:0.8", "position:0.8:0.4", 0.6):
        with pytest.raises(RunError, match=r"temperatures: the run has \['0.8:0.4'\]"):
            generate(other, tmp_path / "a")
    generate(0.6, tmp_path / "b")
    table = ol.Study.open([tmp_path / "a", tmp_path / "b"]).table("generation")
    named = {str(row["model"]) for row in table.rows}
    assert named == {"hmm, temperature 0.8:0.4", "hmm, temperature constant"}
    assert "Temperature 0.8:0.4 within each block; rows show its mean." in table.notes


def test_workers_and_extensions_keep_the_schedule(tmp_path):
    generate("0.8:0.4", tmp_path / "a", orders="forced-ar")
    generate("0.8:0.4", tmp_path / "a", extend=True)
    generate("0.8:0.4", tmp_path / "b", workers=2, batch_size=1)
    first, second = (
        ol.open_run(tmp_path / name).outputs().to_pandas()[["sample_id", "order", "text"]] for name in "ab"
    )
    assert first.sort_values(["order", "sample_id"]).to_numpy().tolist() == (
        second.sort_values(["order", "sample_id"]).to_numpy().tolist()
    )
