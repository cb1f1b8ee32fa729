"""Traces that other decoders recorded, made into runs: ``import_run`` reads a file of rows and writes a run.

Knows row files and the store's schema; needs no model, no tokenizer and no torch.
"""

from __future__ import annotations

from orderlens.texts.foreign.save import Imported, import_run

__all__ = ["Imported", "import_run"]
