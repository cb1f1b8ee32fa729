"""The gallery: draws every figure from small runs and writes the page that shows each with its command.

``make gallery`` decodes missing runs into ``gallery-runs/`` (minutes on a laptop), draws into
``docs/gallery/`` and writes ``docs/gallery.md``. The page prints the commands that this script runs, so
that a reader who copies them gets the same pictures.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURES, WORK = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery", ROOT / "gallery-runs"
OPENING = """\
# Gallery

For readers who look for a figure. Each has the command and the Python that draw it from a run small
enough for a laptop. The pictures show what a figure looks like, not what is true of a model.
`make gallery` makes them and this page.

`orderlens figures RUN…` draws every figure that a run has the data for, and writes its numbers as
JSON. To change a figure, take it as a matplotlib `Figure`:

```python
import orderlens as ol
from orderlens.figures import FIGURES

recipe = FIGURES.get("frontier")
figure = recipe.draw(recipe.data(ol.Study.open("runs/sets")))
figure.savefig("mine.pdf")
```"""
LARGEST = 120_000
"""Bytes above which a picture is shown as PNG."""

RUNS = {
    "score": "orderlens score --model tiny --limit 4 --target-tokens 32 --noise-floor --circulation 2 "
    "--orders forced-ar,reverse-ar,random:0,random:1,max-prob,oracle-min-q --out runs/score",
    "sets": "orderlens score --model hmm --limit 12 --target-tokens 32 --couplings 4 "
    "--orders max-prob,max-prob+top=2,max-prob+top=4,max-prob+top=8,max-prob+threshold=0.5,forced-ar+top=4 "
    "--out runs/sets",
    "census": "orderlens census --model tiny --limit 3 --span 6 --target-tokens 32 "
    "--orders forced-ar,reverse-ar,random,max-prob,top-margin,oracle-max-q --out runs/census",
    "states": "orderlens score --model tiny --limit 12 --target-tokens 32 --states "
    "--orders forced-ar,random,max-prob --out runs/states",
    "sweep": "orderlens sweep --model tiny --limit 4 --max-new-tokens 32 --temperatures 0,0.5,1,1.5 "
    "--orders forced-ar,max-prob,random --out runs/sweep",
    "answers": "orderlens evaluate --model tiny --tasks arith --limit 24 --max-new-tokens 64 "
    "--orders forced-ar,max-prob,random,reverse-ar --out runs/answers",
}
"""Name of a run's folder → the command that decodes it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One picture: the figure, the run it is drawn from (None: no run), and its caption."""

    figure: str
    run: str | None
    see: str

    @property
    def command(self) -> str:
        """The command that draws it."""
        if self.run is None:
            return "orderlens theory curve --sigma 0.1,0.5,1,2 --figures figures --overwrite"
        return f"orderlens figures runs/{self.run} --figure {self.figure} --format svg,png --out figures"

    @property
    def python(self) -> str:
        """The Python that draws it."""
        if self.run is None:
            return (
                'from orderlens.figures.theory import save_theory_figures\n\nsave_theory_figures("figures")'
            )
        return (
            "import orderlens as ol\nfrom orderlens.figures import draw_figures\n\n"
            f'draw_figures(ol.Study.open("runs/{self.run}"), "figures", ["{self.figure}"])'
        )


ITEMS = {
    "Fixed texts": [
        Item(
            "fixed-sequence",
            "score",
            "Mean log q against Var, per order: the same texts and model, only the order changes.",
        ),
        Item(
            "lorenz",
            "score",
            "How unevenly a path spreads its self-information over block 0; the diagonal is even.",
        ),
        Item(
            "coherence",
            "score",
            "How much log P depends on the order, compared with numerical noise.",
        ),
        Item("jensen", "score", "The theory's cost of uneven confidence: exact, and by Var alone."),
        Item("hits", "states", "Are greedy successes independent given q? Whole spans against products."),
        Item("locality", "states", "Entropy by distance to the revealed text, and by pass and position."),
    ],
    "All orders of a span": [
        Item("census", "census", "The rules among all orders: distribution, log P against Var, rank."),
        Item("census-lattice", "census", "The states of a span; best, worst and one rule's path."),
    ],
    "Several tokens per pass": [
        Item(
            "couplings",
            "sets",
            "The cost of several tokens per pass: the coupling of the sets, on the exact control.",
        ),
        Item("frontier", "sets", "Quality against tokens per pass; the ladder has sets of fixed size."),
    ],
    "Generated texts": [
        Item("reveal-order", "answers", "Where each order is at each step; left to right is the diagonal."),
        Item("unmask", "answers", "Reveal numbers over the tokens of texts chosen by rule."),
        Item("temperature", "sweep", "Greedy decoding against sampling, by order."),
        Item("tolerance", "sweep", "The theory's predicted loss of the measured profiles, by temperature."),
    ],
    "Correct and incorrect answers": [
        Item(
            "plane", "answers", "Every answer by mean log q and Var; dashed lines are the quadrants' borders."
        ),
        Item("accuracy-var", "answers", "Accuracy against Var, one point per order."),
        Item("accuracy-by-var", "answers", "Accuracy in bins of Var inside each order."),
        Item(
            "predictors",
            "answers",
            "How well Var, mean log q and length predict correct answers.",
        ),
        Item("var-effect", "answers", "The effect of Var once mean and length are accounted for."),
    ],
    "Theory": [
        Item(
            "theory-curvature",
            None,
            "The log-probability g that a token wins under noise of scale σ, and its curvature.",
        ),
        Item("theory-margin", None, "Where g is concave (above 0, above 1), and even spreading is best."),
        Item(
            "theory-critical-sigma",
            None,
            "The largest noise for which it is, by number of equal competitors.",
        ),
        Item("theory-variance", None, "At equal mean, Var does not rank the chance of recovering a text."),
    ],
}


def main() -> None:
    """Decode the runs, draw the pictures and write the page."""
    decode(WORK)
    PAGE.write_text(page(draw(WORK, PICTURES)), encoding="utf-8")


def decode(folder: Path) -> None:
    """Run the commands of :data:`RUNS` in ``folder``; complete runs are not decoded again."""
    for command in RUNS.values():
        _orderlens(command, folder)


def draw(folder: Path, pictures: Path) -> dict[str, str]:
    """Draw every item from the runs in ``folder``; return figure → file name, SVG unless it is large."""
    found = {}
    pictures.mkdir(parents=True, exist_ok=True)
    for command in dict.fromkeys(item.command for item in every()):
        _orderlens(command, folder)
    for item in every():
        svg = folder / "figures" / f"{item.figure}.svg"
        if svg.stat().st_size <= LARGEST:
            (pictures / svg.name).write_bytes(svg.read_bytes())
            found[item.figure] = svg.name
        else:
            found[item.figure] = _small(svg.with_suffix(".png"), pictures).name
    return found


def _small(picture: Path, folder: Path) -> Path:
    """Write a copy with fewer pixels and colours to ``folder``; return its path."""
    from PIL import Image

    drawn = Image.open(picture).convert("RGB")
    half = drawn.resize((drawn.width * 2 // 3, drawn.height * 2 // 3), Image.Resampling.LANCZOS)
    half.quantize(32).save(folder / picture.name, optimize=True)
    return folder / picture.name


def every() -> list[Item]:
    """Return all items in the page's order."""
    return [item for items in ITEMS.values() for item in items]


def page(files: dict[str, str]) -> str:
    """Return the page as Markdown; ``files`` names each figure's picture."""
    lines = [*OPENING.splitlines(), "", '<div class="thumbnails">']
    for item in every():
        picture = f'<img src="gallery/{files[item.figure]}" alt="" width="200" loading="lazy">'
        lines += [f'<a href="#{item.figure}">{picture}<span>{item.figure}</span></a>', ""]
    lines += ["</div>", "", "## The runs", "", "```console"]
    lines += [*[f"$ {command}" for command in RUNS.values()], "```"]
    for part, items in ITEMS.items():
        lines += ["", f"## {part}"]
        for item in items:
            picture = f"![{item.figure}](gallery/{files[item.figure]})"
            lines += ["", f"### {item.figure}", "", item.see, "", picture]
            lines += ["", "```console", f"$ {item.command}", "```", "", "```python", item.python, "```"]
    return "\n".join(lines) + "\n\nNext: [Analysing](analysing.md) turns runs into tables.\n"


def _orderlens(command: str, folder: Path) -> None:
    import contextlib

    from orderlens.cli.main import main as orderlens

    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        code = orderlens(shlex.split(command)[1:])
    if code:
        sys.exit(f"{command} ended with {code}")


if __name__ == "__main__":
    main()
