"""What reaches a terminal: unsafe characters as escapes, JSON likewise, and ASCII where it shows no more."""

from __future__ import annotations

import codecs
import re

from orderlens.plaintext import UNSAFE, escape

_ASCII = {
    "–": "-", "—": "-", "−": "-", "─": "-", "━": "-", "…": "...", "×": "x", "·": ".", "•": "*", "→": "->",
    "≤": "<=", "≥": ">=", "≈": "~", "±": "+/-", "²": "^2", "₀": "0", "σ": "sigma", "ρ": "rho", "Σ": "sum",
    "Γ": "Gamma", "γ": "gamma", "Δ": "Delta", "τ": "tau", "‘": "'", "’": "'", "“": '"', "”": '"', "│": "|",
    "╸": "-", "╺": "-", "\u00a0": " ", "\u202f": " ",
}  # fmt: skip
ENCODING_ERRORS = "orderlens-ascii"
"""Name of the codec error handler that :func:`install` registers."""


def printable_json(text: str) -> str:
    r"""Return serialised JSON with unsafe characters as ``\uXXXX``: the same data, harmless to look at."""
    return UNSAFE.sub(_json_escape, text)


def install() -> None:
    """Make the ASCII spelling known to the codecs, for terminals that cannot show more."""
    codecs.register_error(ENCODING_ERRORS, _spell)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter) or escape(ord(letter)) for letter in lost), error.end
