"""Fig. 2: reveal numbers over the tokens of a block, for four texts chosen by rule.

The rules compare the paths of one order (max-prob) and are deterministic. They read block 0; the EOS rules
read the block in which a text ends. Tokens are shown by their text in the run's ``tokens`` table, or by id if
the run has no such table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.errors import UndefinedFigureError, UnknownNameError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.reveal_order import BlockPath, ending_blocks, first_blocks
from orderlens.figures.style import WIDTH_TEXT, look, real, short
from orderlens.metrics.order_shape import EosCascade, eos_cascade, spearman_l2r
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

ORDER = "max-prob"
LOCAL = 4
"""Maximum displacement from left-to-right order, in positions, that counts as a local swap."""


STRONG = 3
"""Minimum number of consecutive EOS reveals that counts as a cascade."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties of a path that the rules compare."""

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
            spearman_l2r(path.offsets[~path.eos]),
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
        """Whether content is revealed after an EOS: the end was fixed before the text was complete."""
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
    # Prefer an end that was fixed before the text was complete; then compare lengths.
    strong = _best(sealed, lambda item: (item.early_eos, item.cascade.length))
    rest = [item for item in mixed if item is not strong]
    mild = _best(rest, lambda item: (item.early_eos, item.switches, -item.cascade.length))
    swapped = [item for item in content if item is not nearest and item.displaced > 0]
    local = [item for item in swapped if item.displaced <= LOCAL]
    # Prefer most swaps among texts whose swaps are all local; otherwise the text closest to left-to-right.
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
    """Return the text of each token id that the run stores; empty if it stores none."""
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


FONT = "DejaVu Sans Mono"
FONT_SIZE = 6.6
_LETTER = FONT_SIZE * 0.602 / 72
_MARGIN, _GAP, _PAD = 0.08, 0.045, 0.045
_BOX, _ROW, _HEAD, _BETWEEN = 0.165, 0.375, 0.36, 0.12
_CIRCLE = 0.078
_LEGEND_LETTER, _LEGEND_GAP = 0.062, 0.16
MAX_LETTERS = 14


@dataclass(frozen=True, slots=True)
class TokenKind:
    """How a kind of token is drawn: fill, edge, letters, and dashes to distinguish kinds in greyscale."""

    fill: str
    edge: str
    letters: str
    dashes: str | tuple[int, tuple[float, ...]]
    name: str


KINDS = {
    "content": TokenKind("#dce8f5", "#2b5c8a", "#16324d", "-", "content"),
    "eos": TokenKind("#7b4a9e", "#4e2a6b", "white", "-", "EOS"),
    "special": TokenKind("#fbdcd7", "#b2182b", "#7a0f1d", (0, (2, 1)), "special"),
}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the chosen texts, one panel under the other."""
    from matplotlib.figure import Figure

    with look():
        placed = [_place(item.get("tokens", [])) for item in data["examples"]]
        legend = 0.3
        height = legend + sum(_height(rows) for rows in placed) + _BETWEEN * len(placed)
        figure = Figure(figsize=(WIDTH_TEXT, height), layout="constrained")
        figure.set_layout_engine("none")  # places are computed here, in inches
        panel = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        panel.set(xlim=(0, WIDTH_TEXT), ylim=(height, 0))
        panel.axis("off")
        _legend(panel, data)
        top = legend
        for letter, item, rows in zip("abcdefgh", data["examples"], placed, strict=False):
            _heading(panel, letter, item, top)
            _draw_rows(panel, rows, top + _HEAD)
            top += _height(rows) + _BETWEEN
    return figure


Row = list[tuple[float, float, str, Mapping[str, Any]]]


def _place(tokens: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return rows of (left, width, text, token), wrapped at the text width."""
    rows: list[Row] = []
    left = WIDTH_TEXT
    for token in tokens:
        text = "EOS" if token["kind"] == "eos" else visible(token["piece"])
        width = max(len(text), 2) * _LETTER + 2 * _PAD
        if left + width > WIDTH_TEXT - _MARGIN:
            rows.append([])
            left = _MARGIN
        rows[-1].append((left, width, text, token))
        left += width + _GAP
    return rows


def _height(rows: Sequence[Row]) -> float:
    return _HEAD + _ROW * len(rows) if rows else _HEAD * 0.6


def _draw_rows(panel: Axes, rows: Sequence[Row], top: float) -> None:
    for place, row in enumerate(rows):
        base = top + place * _ROW + 0.1
        for left, width, text, token in row:
            kind = KINDS[token["kind"]]
            _box(panel, left, base, width, text, kind)
            _circle(panel, left + width / 2, base - 0.075, int(token["step"]) + 1, kind)


def _box(panel: Axes, left: float, base: float, width: float, text: str, kind: TokenKind) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.03"
    look_of_box: dict[str, Any] = {
        "facecolor": kind.fill,
        "edgecolor": kind.edge,
        "linestyle": kind.dashes,
        "linewidth": 0.7,
    }
    panel.add_patch(FancyBboxPatch((left, base), width, _BOX, boxstyle=shape, **look_of_box))
    panel.text(
        left + width / 2,
        base + _BOX / 2 + 0.005,
        text,
        family=FONT,
        fontsize=FONT_SIZE,
        color=kind.letters,
        ha="center",
        va="center_baseline",
        parse_math=False,
    )


def _circle(panel: Axes, x: float, y: float, number: int, kind: TokenKind) -> None:
    from matplotlib.patches import Circle

    ring = Circle((x, y), _CIRCLE, facecolor="white", edgecolor=kind.edge, linewidth=0.6, zorder=3)
    panel.add_patch(ring)
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 4}
    panel.text(x, y, str(number), fontsize=5.2, color=kind.edge, **style)


def _heading(panel: Axes, letter: str, item: Mapping[str, Any], top: float) -> None:
    panel.text(_MARGIN, top + 0.1, f"({letter})  {item['rule']}", fontsize=8.5, va="center")
    if item.get("missing"):
        text = "no text of this run fits the rule"
    else:
        rho = real(item["spearman_content"])
        facts = [f"content ρ = {short(rho, 3)}" if math.isfinite(rho) else "content ρ undefined"]
        if item["eos_cascade"]:
            start, resumes = real(item["cascade_start"]), real(item["content_resumes"])
            facts.append(f"cascade of {item['eos_cascade']} from step {start + 1:.0f}")
            if math.isfinite(resumes):
                facts.append(f"content resumes at step {resumes + 1:.0f}")
        text = f"{item['sample_id']}, block {item['block']}: " + ", ".join(facts)
    panel.text(
        WIDTH_TEXT - _MARGIN,
        top + 0.1,
        visible(text, limit=110, spaces=False),
        fontsize=6.6,
        color="#5f5f5f",
        ha="right",
        va="center",
        parse_math=False,
    )


def _legend(panel: Axes, data: Mapping[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    temperature = f"T = {real(data['temperature']):g}"
    title = f"{display_name(data['order'])}, {temperature}: circles number the reveals of a block"
    panel.text(_MARGIN, 0.15, title, fontsize=7.5, va="center")
    left = WIDTH_TEXT - _MARGIN - sum(_legend_width(kind) for kind in KINDS.values()) + _LEGEND_GAP
    for kind in KINDS.values():
        panel.add_patch(
            Rectangle(
                (left, 0.1),
                0.13,
                0.1,
                facecolor=kind.fill,
                edgecolor=kind.edge,
                linestyle=kind.dashes,
                linewidth=0.7,
            )
        )
        panel.text(left + 0.18, 0.15, kind.name, fontsize=7.0, va="center")
        left += _legend_width(kind)


def _legend_width(kind: TokenKind) -> float:
    """Return the inches that a kind takes in the legend: sign, name and the gap after it."""
    return 0.18 + len(kind.name) * _LEGEND_LETTER + _LEGEND_GAP


def visible(text: str, limit: int = MAX_LETTERS, *, spaces: bool = True) -> str:
    """Return ``text`` with blanks made visible, letters the font lacks replaced, and its middle cut."""
    shown = text
    if spaces:
        for blank, sign in ((" ", "·"), ("\n", "↵"), ("\t", "→"), ("\r", "↵")):
            shown = shown.replace(blank, sign)
    known = _letters()
    shown = "".join(letter if ord(letter) in known and letter.isprintable() else "□" for letter in shown)
    return shown if len(shown) <= limit else f"{shown[: limit // 2]}…{shown[len(shown) - limit // 2 + 1 :]}"


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    """Return the code points that the monospaced font has."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


RECIPE = Recipe("Reveal numbers over the tokens of four texts (Fig. 2)", data, draw, "ending")
