"""Recorded passes that insert and delete tokens: each slot keeps its identity."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import orderlens as ol  # noqa: E402
from orderlens.errors import UserInputError  # noqa: E402

MASK, VOCAB = 11, 12


def record(*passes: tuple[list[int], list[int], list[int] | None]) -> tuple[ol.Run, list[object]]:
    """Record passes (before, after, origin) of one text; also return their logits."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(len(before), VOCAB, generator=generator) for before, _, _ in passes]
    with ol.record(None, mask_id=MASK) as rec:
        for (before, after, origin), logits in zip(passes, rows, strict=True):
            rec.add_pass("a", torch.tensor(before), torch.tensor(after), logits, origin=origin)
    return rec.run, rows


def test_a_split_and_a_deletion_are_traced_by_slot() -> None:
    """[1, M, M] → 5 is revealed; a mask is inserted before it; 7 and 8 are revealed; 5 is deleted."""
    run, rows = record(
        ([1, MASK, MASK], [1, 5, MASK], None),
        ([1, 5, MASK], [1, MASK, 5, MASK], [0, -1, 1, 2]),
        ([1, MASK, 5, MASK], [1, 7, 5, 8], None),
        ([1, 7, 5, 8], [1, 7, 8], [0, 1, 3]),
    )
    reveals = run.reveals().to_pandas().sort_values("position")
    assert reveals[["position", "token_id", "forward"]].values.tolist() == [[1, 7, 2], [3, 8, 2]]
    expected = [float(rows[2][row].log_softmax(-1)[token]) for row, token in ((1, 7), (3, 8))]  # type: ignore[index]
    assert reveals["logq"].tolist() == pytest.approx(expected, abs=1e-5)
    events = run.table("revisions").to_pandas()
    found = events[["event", "position", "forward"]].values.tolist()
    assert found == [["reveal", 2, 0], ["remask", 2, 3]]  # slot 2 of the four that ever existed
    assert run.outputs().to_pandas()["token_ids"][0].tolist() == [7, 8]


def test_a_mask_that_moves_is_still_the_same_slot() -> None:
    """The mask at the end is revealed after a slot before it was deleted and one was inserted."""
    run, rows = record(
        ([1, MASK, MASK], [1, 5, MASK], None),
        ([1, 5, MASK], [1, MASK], [0, 2]),
        ([1, MASK], [1, 9], None),
    )
    reveals = run.reveals().to_pandas()
    assert reveals[["position", "token_id"]].values.tolist() == [[2, 9]]
    assert float(reveals["logq"][0]) == pytest.approx(float(rows[2][1].log_softmax(-1)[9]), abs=1e-5)  # type: ignore[index]


@pytest.mark.parametrize("origin", [[0, 2, 1], [0, 0, 1], [0, 1, 3], [0, 1]])
def test_an_origin_that_cannot_be_is_refused(origin: list[int]) -> None:
    with pytest.raises(UserInputError, match=r"origin=|an origin for each id"):
        record(([1, MASK, MASK], [1, 5, MASK], origin))
