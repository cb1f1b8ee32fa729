"""Fig. 2: reveal numbers over the tokens of a block, for four texts chosen by rule.

The rules look at one order's paths (max-prob) and always pick the same texts from the same run: at block 0,
and for the EOS rules at the block in which a text ends. Tokens are shown by the text stored in the run's
``tokens`` table, or by id where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.errors import UndefinedFigureError, UnknownNameError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.reveal_order import BlockPath, ending_blocks, first_blocks
from orderlens.metrics.order_shape import EosCascade, eos_cascade, spearman_l2r

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

ORDER = "max-prob"
LOCAL = 4
"""Places by which a reveal may miss its left-to-right turn and still count as a local swap."""


STRONG = 3
"""Steps from which a run of EOS reveals counts as a cascade."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rules look at."""

    path: BlockPath
    rho: float
    cascade: EosCascade
    displaced: int
    switches: int

    @classmethod
    def of(cls, path: BlockPath) -> Shape:
        """Measure one path."""
        content = path.content
        ranks = np.argsort(np.argsort(path.offsets[content]))
        displaced = int(np.abs(ranks - np.arange(len(ranks))).max(initial=0))
        kinds = path.eos.astype(int)
        return cls(
            path,
            spearman_l2r(path.offsets[content]),
            eos_cascade(path.offsets, path.eos, content),
            displaced,
            int(np.abs(np.diff(kinds)).sum()),
        )

    @property
    def all_content(self) -> bool:
        """Whether the block holds neither EOS nor special tokens."""
        return bool(self.path.content.all())

    @property
    def early_eos(self) -> bool:
        """Whether content follows an EOS reveal: the tail was sealed before the text was written."""
        eos, content = np.flatnonzero(self.path.eos), np.flatnonzero(self.path.content)
        return bool(len(eos) and len(content) and eos[0] < content[-1])


def data(study: Study, order: str = ORDER) -> dict[str, Any]:
    """Return up to four chosen texts with their tokens, reveal steps (from 0) and kinds, in text order."""
    shapes = [Shape.of(path) for path in first_blocks(study, [order])]
    if not shapes:
        raise UndefinedFigureError(f"the run holds no texts generated with order '{order}'")
    pieces = token_pieces(study)
    examples = []
    ending = [Shape.of(path) for path in ending_blocks(study, [order])]
    for rule, found in choose(shapes, ending).items():
        examples.append({"rule": rule} | ({"missing": True} if found is None else _example(found, pieces)))
    return {"order": order, "temperature": study.temperature, "n": len(shapes), "examples": examples}


def choose(shapes: Sequence[Shape], ending: Sequence[Shape]) -> dict[str, Shape | None]:
    """Return the four examples by rule; a rule that no text fits gives None. Ties go to the first id.

    Args:
        shapes: block 0 of every text.
        ending: the first block with EOS of every text that has one.
    """
    ranked = _ranked(shapes)
    longest = max((len(item.path.offsets) for item in ranked), default=0)  # a prompt may fill part of block 0
    whole = [item for item in ranked if len(item.path.offsets) == longest]
    content = [item for item in whole if item.all_content and item.rho == item.rho]
    nearest = _best(content or [item for item in whole if item.rho == item.rho], lambda item: item.rho)
    mixed = [item for item in _ranked(ending) if item.path.content.any()]
    sealed = [item for item in mixed if item.cascade.length >= STRONG]
    # A tail sealed before the text is written comes first; only then the length counts.
    strong = _best(sealed, lambda item: (item.early_eos, item.cascade.length))
    rest = [item for item in mixed if item is not strong]
    mild = _best(rest, lambda item: (item.early_eos, item.switches, -item.cascade.length))
    swapped = [item for item in content if item is not nearest and item.displaced > 0]
    local = [item for item in swapped if item.displaced <= LOCAL]
    # Most swaps while all of them stay local; failing that, the least disorderly text that is left.
    swaps = _best(local, lambda item: -item.rho) or _best(swapped, lambda item: item.rho)
    return {
        "nearest to left-to-right": nearest,
        "strongest EOS cascade": strong,
        "milder cascade": mild,
        "all content, local swaps": swaps,
    }


def _ranked(shapes: Sequence[Shape]) -> list[Shape]:
    return sorted(shapes, key=lambda item: item.path.sample_id)


def _best(items: Sequence[Shape], score: Callable[[Shape], Any]) -> Shape | None:
    return max(items, key=score) if items else None


def token_pieces(study: Study) -> dict[int, str]:
    """Return the text of each token id that the run knows; empty when it stores none."""
    try:
        table = study.run.table("tokens").to_arrow(["token_id", "piece"])
    except UnknownNameError:
        return {}
    return dict(zip(table["token_id"].to_pylist(), table["piece"].to_pylist(), strict=True))


def _example(shape: Shape, pieces: Mapping[int, str]) -> dict[str, Any]:
    path = shape.path
    steps = np.argsort(path.offsets)
    tokens = []
    for step in steps:
        kind = "eos" if path.eos[step] else "special" if path.special[step] else "content"
        token = int(path.tokens[step])
        piece = pieces.get(token, f"#{token}")
        tokens.append({"piece": piece, "kind": kind, "step": int(step), "logq": float(path.logq[step])})
    cascade = shape.cascade
    return {
        "sample_id": path.sample_id,
        "block": path.block,
        "spearman_content": shape.rho,
        "eos_cascade": cascade.length,
        "cascade_start": cascade.start,
        "content_resumes": cascade.resume,
        "tokens": tokens,
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the chosen texts, one panel under the other."""
    from orderlens.figures.token_boxes import draw_examples

    return draw_examples(data)


RECIPE = Recipe("Reveal numbers over the tokens of four texts (Fig. 2)", data, draw, "ending")
