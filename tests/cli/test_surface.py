"""The command line is frozen: scripts rely on every verb, option, type and default.

A deliberate change is written down with ``python tests/support/surface.py > tests/cli/surface.json``.
"""

from __future__ import annotations

import json
from pathlib import Path

from orderlens.metrics.trace_table import overflow_note
from support.surface import surface

AGREED = Path(__file__).parent / "surface.json"


def test_nothing_changed_by_accident():
    agreed, found = json.loads(AGREED.read_text(encoding="utf-8")), surface()
    assert set(found) == set(agreed)
    for verb, parameters in agreed.items():
        assert {item["names"][0]: item for item in found[verb]} == {
            item["names"][0]: item for item in parameters
        }, f"{verb} changed; see this file's first lines"


def test_every_verb_has_json_and_every_out_has_its_letter():
    found = surface()
    for verb, parameters in found.items():
        names = [name for item in parameters for name in item["names"]]
        assert "--json" in names or verb in ("orderlens", "theory", "runs"), verb
        assert ("--out" in names) == ("-o" in names), verb


def test_the_note_on_overflow_names_the_verbs_that_have_the_option():
    verbs = [
        verb for verb, items in surface().items() if any(item["names"][0] == "--overflow" for item in items)
    ]
    assert f"{' and '.join(verbs)} take --overflow mask" in str(overflow_note([1]))
