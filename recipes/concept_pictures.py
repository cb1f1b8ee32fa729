"""Draws the pictures of docs/concepts.md from one text, scored by the bundled model.

    python recipes/concept_pictures.py docs/concepts

Writes plain SVG with its own white background, so that it reads well on light and dark pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import orderlens as ol

SAMPLE = ol.Sample(
    "ferry",
    prompt="The ferry leaves the harbour at nine in",
    target=" the morning and comes back before dark.",
)
ORDERS = ("forced-ar", "max-prob", "reverse-ar", "max-prob+top=2")
INK, QUIET, BLUE, ORANGE = "#1d2330", "#5b6270", "#1f4e8c", "#a8480a"
CELL = 82
"""Width of one token in pixels."""


def text(
    x: float, y: float, words: str, *, colour: str = INK, anchor: str = "middle", bold: bool = False
) -> str:
    """Return one line of text; ``x``, ``y`` in pixels."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{weight}>{words}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> str:
    """Return a rectangle with round corners."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="4" fill="{fill}" stroke="{stroke}"/>'


def line(x: float, y: float, to_x: float, to_y: float, colour: str = QUIET, *, arrow: bool = False) -> str:
    """Return a line, with an arrow head at its end if ``arrow``."""
    head = ' marker-end="url(#head)"' if arrow else ""
    ends = f'x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"'
    return f'<line {ends} stroke="{colour}" stroke-width="1.5"{head}/>'


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return a complete SVG file; ``title`` is its text for readers who cannot see it."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{QUIET}"/></marker>'
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = 'role="img" font-family="system-ui,sans-serif" font-size="13"'
    body = "\n".join([box(0, 0, width, height, "#fff"), *parts])
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return f"{begin}\n<title>{title}</title><defs>{head}</defs>\n{body}\n</svg>\n"


def shade(logq: float) -> str:
    """Return a colour from white (certain) to orange (log q ≤ −10)."""
    part = min(-logq, 10) / 10
    return "#" + "".join(f"{round(255 + part * (end - 255)):02x}" for end in (231, 150, 96))


def orders(traces: dict[str, np.ndarray], words: list[str]) -> str:
    """One row per order: tokens in reading order, shaded by log q, with reveal number and log q."""
    parts = []
    for row, order in enumerate(("forced-ar", "max-prob", "reverse-ar")):
        top = 20 + row * 92
        parts.append(text(16, top + 36, order, anchor="start", bold=True))
        for step, (place, logq) in enumerate(traces[order][:, 1:]):
            left = 110 + place * CELL
            parts.append(box(left, top, CELL - 6, 68, shade(logq), "#d8d5cc"))
            parts.append(text(left + CELL / 2 - 3, top + 20, words[int(place)], bold=True))
            parts.append(text(left + CELL / 2 - 3, top + 40, f"reveal {step + 1}", colour=BLUE))
            parts.append(text(left + CELL / 2 - 3, top + 59, f"{logq:.2f}", colour=QUIET))
    return picture(780, 296, "One text revealed in three orders, with log q of every token", parts)


def blocks(words: list[str]) -> str:
    """A text of a prompt and two blocks, and what a block sees."""
    parts = [box(16, 30, 180, 40, "#e9eef6", BLUE), text(106, 55, "prompt", bold=True)]
    for number in (0, 1):
        left = 206 + number * 280
        parts += [box(left, 30, 270, 40, "#fff", BLUE), text(left + 135, 22, f"block {number}", bold=True)]
        shown = words[number * 4 : number * 4 + 4] if number == 0 else ["░"] * 4
        parts += [text(left + 34 + place * 67, 55, word) for place, word in enumerate(shown)]
    parts += [line(620, 76, 620, 98), line(620, 98, 106, 98), line(106, 98, 106, 78, arrow=True)]
    parts += [line(341, 98, 341, 78, arrow=True)]
    parts.append(
        text(
            380, 118, "block 1 sees the prompt, block 0 and itself; block 0 never sees block 1", colour=QUIET
        )
    )
    return picture(
        772, 132, "A prompt and two blocks; each block sees only what comes before it and itself", parts
    )


def coherence(traces: dict[str, np.ndarray]) -> str:
    """Two ways to reveal the same two tokens, with the log-probability of each step and of each way."""
    first, second = traces["forced-ar"][1:3, 2], traces["max-prob"][1:3, 2]
    states = {
        "the ░ ░": (90, 90),
        "the morning ░": (370, 36),
        "the ░ and": (370, 144),
        "the morning and": (650, 90),
    }
    parts = [
        box(x - 74, y - 20, 148, 40, "#e9eef6", BLUE) + text(x, y + 5, label)
        for label, (x, y) in states.items()
    ]
    ways = [((164, 80), (296, 44), first[0], 34), ((444, 44), (576, 80), first[1], 34)]
    ways += [((164, 100), (296, 136), second[0], 158), ((444, 136), (576, 100), second[1], 158)]
    for (x, y), (to_x, to_y), logq, label_y in ways:
        parts.append(line(x, y, to_x, to_y, arrow=True))
        parts.append(text((x + to_x) / 2, label_y, f"{logq:.2f}", colour=ORANGE))
    parts.append(text(370, 84, f"upper path {first.sum():.2f}", bold=True))
    parts.append(text(370, 104, f"lower path {second.sum():.2f}", bold=True))
    return picture(740, 186, "Two paths to the same two tokens with different total log-probability", parts)


def variance(traces: dict[str, np.ndarray]) -> str:
    """Bars of −log q by step for two orders of one text, each with its mean."""
    parts = []
    for number, order in enumerate(("forced-ar", "reverse-ar")):
        left, logq = 30 + number * 370, traces[order][:, 2]
        floor, mean = 200, -logq.mean() * 13
        parts.append(
            text(
                left, 24, f"{order}: mean {logq.mean():.2f}, Var {logq.var():.2f}", anchor="start", bold=True
            )
        )
        for step, value in enumerate(-logq):
            parts.append(box(left + step * 40, floor - value * 13, 30, value * 13, BLUE))
            parts.append(text(left + step * 40 + 15, floor + 16, str(step + 1), colour=QUIET))
        parts.append(line(left - 6, floor - mean, left + 320, floor - mean, ORANGE))
    parts.append(text(370, 238, "reveal; bars: −log q (nats); line: mean", colour=QUIET))
    return picture(
        740, 250, "Cost of every step under two orders: one even, one concentrated in few steps", parts
    )


def passes(traces: dict[str, np.ndarray], words: list[str]) -> str:
    """The tokens that each forward pass reveals, one token per pass and two."""
    parts = []
    for row, order in enumerate(("max-prob", "max-prob+top=2")):
        top = 20 + row * 96
        parts.append(text(16, top + 30, order, anchor="start", bold=True))
        trace = traces[order]
        for number in range(int(trace[-1, 0]) + 1):
            left, shown = 140 + number * CELL, trace[trace[:, 0] == number]
            parts.append(box(left, top, CELL - 6, 56, "#e9eef6", BLUE))
            parts.append(text(left + CELL / 2 - 3, top + 74, f"pass {number + 1}", colour=QUIET))
            for index, place in enumerate(shown[:, 1]):
                parts.append(
                    text(
                        left + CELL / 2 - 3,
                        top + (33 if len(shown) == 1 else 23 + 22 * index),
                        words[int(place)],
                    )
                )
    return picture(810, 212, "Eight passes with one token each, and four passes with two tokens each", parts)


def main(folder: Path) -> None:
    """Score the text and write the five pictures."""
    rows = ol.score("tiny", [SAMPLE], ORDERS).reveals(text=True).to_pandas()
    rows["place"] = rows["position"] - rows["position"].min()
    words = [str(word).strip() for word in rows[rows["order"] == "forced-ar"]["text"]]
    traces = {
        str(order): part[["forward", "place", "logq"]].to_numpy() for order, part in rows.groupby("order")
    }
    folder.mkdir(exist_ok=True)
    drawn = {"orders": orders(traces, words), "blocks": blocks(words), "coherence": coherence(traces)}
    drawn |= {"variance": variance(traces), "passes": passes(traces, words)}
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
