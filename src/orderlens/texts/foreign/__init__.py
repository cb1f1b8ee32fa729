"""Converts traces that other decoders recorded into runs: ``import_run`` reads a file and writes a run.

Needs no model, no tokenizer and no torch.
"""

from __future__ import annotations

from orderlens.texts.foreign.save import Imported, import_run

__all__ = ["Imported", "import_run"]
