from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
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


def test_digests_follow_the_table() -> None:
    assert StubModel(ROWS).digest == StubModel(ROWS).digest != StubModel(ROWS[::-1]).digest
