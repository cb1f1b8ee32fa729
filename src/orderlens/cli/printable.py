"""What may reach a terminal: everything else is shown as its escape.

Texts, ids, file names and models come from elsewhere. A control character in them could move the cursor, hide
or recolour what stands there, set a title or a link; a bidirectional control could swap what is read. Letters
of every script, combining marks and emoji pass.
"""

from __future__ import annotations

import codecs
import re

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1 (CSI, OSC, …)
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, embeddings, overrides, isolates
    "\u2028\u2029\ufff9-\ufffb"  # line separators, interlinear anchors
    "\U000e0000-\U000e007f"  # invisible tags
    "\ud800-\udfff"  # halves of characters: no text at all
    "]"
)
_ASCII = {
    "–": "-", "—": "-", "−": "-", "─": "-", "━": "-", "…": "...", "×": "x", "·": ".", "•": "*", "→": "->",
    "≤": "<=", "≥": ">=", "≈": "~", "±": "+/-", "²": "^2", "₀": "0", "σ": "sigma", "ρ": "rho", "Σ": "sum",
    "Γ": "Gamma", "γ": "gamma", "Δ": "Delta", "τ": "tau", "‘": "'", "’": "'", "“": '"', "”": '"', "│": "|",
    "╸": "-", "╺": "-", "\u00a0": " ", "\u202f": " ",
}  # fmt: skip
ENCODING_ERRORS = "orderlens-ascii"
"""Name of the codec error handler that :func:`install` registers."""


def printable(text: str) -> str:
    r"""Return ``text`` with every unsafe character as ``\x1b``, ``\u202e`` or ``\U000e0041``."""
    return _UNSAFE.sub(lambda found: _escape(ord(found[0])), text)


def printable_json(text: str) -> str:
    r"""Return serialised JSON with unsafe characters as ``\uXXXX``: the same data, harmless to look at."""
    return _UNSAFE.sub(_json_escape, text)


def install() -> None:
    """Make the ASCII spelling known to the codecs, for terminals that cannot show more."""
    codecs.register_error(ENCODING_ERRORS, _spell)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter) or _escape(ord(letter)) for letter in lost), error.end
