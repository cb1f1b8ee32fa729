"""Documents of small evaluations of the exact control model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCENES = [
    {
        "ind": 7,
        "activity_label": "Baking",
        "ctx_a": "A cook opens the oven.",
        "ctx_b": "she",
        "ctx": "A cook opens the oven. she",
        "endings": ["takes out a tray.", "swims away.", "paints the ceiling blue.", "reads a map."],
        "label": str(label),
    }
    for label in (0, 2, 1)
]


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with HellaSwag's fields; its rows share one ``ind``, as some published rows do."""
    path = tmp_path_factory.mktemp("data") / "scenes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in SCENES))
    return path
