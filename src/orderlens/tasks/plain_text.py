"""Brings digits, signs and marks of many scripts to one plain form before an answer is read.

Length and order of the visible content are kept; nothing here knows what an answer is.
"""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+"
)
_SUPERSCRIPT = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SUPERSCRIPT_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_THIN_GROUPS = re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_VULGAR = re.compile(r"[¼½¾⅐-⅞]")
_FIXED = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full-width forms of ASCII
    0x3000: " ", 0x00A0: " ", 0x2009: " ", 0x202F: " ",
    0x2212: "-", 0xFE63: "-", 0x2013: "-",
    0x2044: "/", 0x2215: "/", 0xFE6A: "%",
    0x066A: "%", 0x066B: ".", 0x066C: ",",  # Arabic
}  # fmt: skip


def plain(text: str) -> str:
    """Return ``text`` with ASCII digits and signs.

    Full-width forms and the digits of other scripts become ASCII, superscripts become ``^2``, ``½`` becomes
    `` 1/2``; control and direction marks vanish, so that they cannot split a number.
    """
    text = _INVISIBLE.sub("", text)
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda hit: "^" + hit[0].translate(_SUPERSCRIPT_DIGITS), text)
    text = _THIN_GROUPS.sub(",", text)
    text = _VULGAR.sub(lambda hit: " " + unicodedata.normalize("NFKC", hit[0]), text)
    foreign = (char for char in set(text) if char.isdecimal() and char > "~")
    digits = {ord(char): str(unicodedata.digit(char)) for char in foreign}
    return text.translate({**_FIXED, **digits})
