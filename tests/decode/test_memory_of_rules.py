"""What rules keep between passes, in bytes per position: the figures of the pages policies and revisions."""

from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.decode import generate
from orderlens.decode.chains import Chains
from orderlens.models.protocol import HiddenRows
from orderlens.rules import parse_policy
from orderlens.texts.samples import EncodedSample


@pytest.fixture
def kept(monkeypatch):
    """Return a function that decodes a text and gives back the chains as they ended."""
    made = []

    def recording(*args, **kwargs):
        made.append(Chains(*args, **kwargs))
        return made[-1]

    def run(model, spec):
        samples = [EncodedSample("s", np.arange(29))]
        settings = generate.GenerationSettings(3, stop_at_eos=False)
        generate.generate_batch(model, samples, [parse_policy(spec)], settings)
        return made[-1]

    monkeypatch.setattr(generate, "Chains", recording)
    return run


def by_name(table):
    """Bytes of everything that a rule keeps, per position."""
    arrays = [values for _, values in (*table._rows.values(), *table._chains.values())]
    return sum(values.nbytes for values in arrays) / table._shape[0] / table._shape[1]


@pytest.mark.parametrize(("name", "row"), [("hmm", 51 * 8), ("tiny", 384 * 4)])
def test_klass_keeps_one_row_of_the_model_and_sixteen_bytes(kept, name, row):
    model = ol.load_model(name)
    chains = kept(model, "klass")
    memory = chains.memory[0]
    rows = memory.rows._store
    held = rows.hidden_RD if isinstance(rows, HiddenRows) else rows.log_probs_RV
    n_positions = len(chains.sample_N) * model.block_size
    assert len(held) == n_positions
    assert held.nbytes / n_positions == row
    assert by_name(memory.commit) + memory.rows._stored_pass_NB.nbytes / n_positions == 8 + 8


def test_credit_keeps_sixteen_bytes_per_guess_and_no_vocabulary(kept):
    memory = kept(ol.load_model("hmm"), "credit").memory[0]
    guesses = int(memory.commit.rows("guesses", 0).max())
    per_position = by_name(memory.commit)
    assert 1 <= guesses <= 32
    assert (per_position - 8) % 16 == 0
    assert guesses <= (per_position - 8) / 16 <= 32, "slots: the most guesses that any block had"
    assert memory.rows._store is None


@pytest.mark.parametrize("spec", ["remdm", "remdm-conf", "rcr", "mask-predict", "p2", "llada2.1", "wino"])
def test_revisers_keep_one_number_per_position(kept, spec):
    model = ol.load_model("hmm")
    chains = kept(model, spec)
    memory, n_positions = chains.memory[0], len(chains.sample_N) * model.block_size
    assert chains.logq_NB.nbytes / n_positions == 8
    assert memory.rows._store is None
    assert by_name(memory.revise) == (8 / model.block_size if spec == "wino" else 0)
