from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.errors import UserInputError
from orderlens.testing import StubModel

ROWS = np.log([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0.05, 0.05, 0.9]])


def test_a_trace_holds_the_given_numbers() -> None:
    """Most probable first, over a table that does not depend on the context."""
    run = ol.generate(
        StubModel(ROWS, block_size=4), [ol.Sample("a", [])], ["max-prob"], max_new_tokens=4, stop_at_eos=False
    )
    found = run.reveals().to_pandas()
    assert found["position"].tolist() == [3, 1, 0, 2]
    assert found["token_id"].tolist() == [2, 1, 0, 0]
    assert np.allclose(found["logq"], np.log([0.9, 0.8, 0.7, 0.4]))


def test_one_row_serves_every_position_and_the_mask_is_never_revealed() -> None:
    log_p = StubModel(ROWS[0]).log_probs([3, 0, 3, 1, 1])
    assert np.allclose(log_p[:, :3], ROWS[0])
    assert (log_p[:, 3] == -np.inf).all()


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_a_rule_sees_what_the_attention_allows(attention: str) -> None:
    seen: dict[int, list[int]] = {}

    def rule(tokens, position):  # type: ignore[no-untyped-def]
        seen[position] = tokens.tolist()
        return np.zeros(4)

    StubModel(rule, vocab_size=5, block_size=2, attention=attention).log_probs([0, 4, 2, 3])  # type: ignore[arg-type]
    assert seen[0] == ([0, 4] if attention == "block-causal" else [0, 4, 2, 3])
    assert seen[2] == [0, 4, 2, 3]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="needs vocab_size"):
        StubModel(lambda *_: np.zeros(3))
    with pytest.raises(ValueError, match="position 0 has 3 logits, not 4"):
        StubModel(lambda *_: np.zeros(3), vocab_size=5).log_probs([0])


def test_a_function_is_not_identified_and_so_never_resumed(tmp_path) -> None:
    """Two functions shared one digest: the second got the first one's numbers."""
    first, second = (StubModel(lambda *_, row=row: row, vocab_size=4) for row in ROWS[:2])
    sample = [ol.Sample("a", [0], [1, 2])]
    for model in (first, second):
        with pytest.raises(UserInputError, match=r"no digest.*the model a digest.*the run in memory"):
            ol.score(model, sample, "forced-ar", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    found = [ol.score(model, sample, "forced-ar").reveals().to_pandas()["logq"] for model in (first, second)]
    assert not found[0].equals(found[1])
    named = StubModel(lambda *_: ROWS[0], vocab_size=4, digest="mine")
    assert ol.score(named, sample, "forced-ar", out=tmp_path / "run").is_complete


def test_digests_follow_the_table() -> None:
    assert StubModel(np.zeros((2, 3))).digest != StubModel(np.zeros((3, 2))).digest
    assert StubModel(ROWS).digest == StubModel(ROWS).digest != StubModel(ROWS[::-1]).digest
