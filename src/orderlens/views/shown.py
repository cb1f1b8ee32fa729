"""What ``sample.show()`` gives: traces to look at, as text at a prompt and as HTML in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from orderlens.views.film import film
from orderlens.views.markup import markup
from orderlens.views.sketch import WIDTH, Drawable, sketch
from orderlens.views.trace import TraceView

MOST = 4
"""Traces that are drawn where nobody names some."""


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """Traces of one sample, drawn when they are displayed."""

    sample: Drawable
    traces: tuple[TraceView, ...]

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """Return the drawing in lines of ``width`` characters."""
        return sketch(self.sample, self.traces, width)

    def film(self) -> str:
        """Return an animated SVG in which the tokens appear in the order of their reveal."""
        return film(self.sample, self.traces)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return markup(self.sample, self.traces)
