"""The text of token ids, as runs store it (table ``tokens``), put beside the rows that hold the ids."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import RunError
from orderlens.store.sources import Source

TEXT = pa.field("text", pa.string())
"""The column that is put behind ``token_id``."""


class Pieces:
    """Token ids and their texts, of one run.

    Raises:
        RunError: the run stores no texts of tokens.
    """

    def __init__(self, source: Source) -> None:
        if "tokens" not in source.tables():
            raise RunError(
                f"{source.label} holds no texts of tokens (runs before schema 1.1 do not); decode them with "
                "the model: orderlens.load_model(…).tokenizer.decode([token_id])"
            )
        found: dict[Any, Any] = {}
        for chunk in source.scan("tokens", ["token_id", "piece"]):
            found |= dict(zip(chunk["token_id"].to_pylist(), chunk["piece"].to_pylist(), strict=True))
        self._ids = pa.array(list(found), pa.int32())
        self._texts = pa.array(list(found.values()), pa.string())

    def of(self, ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the texts of token ids; null for one that is unknown."""
        return self._texts.take(pc.index_in(ids.combine_chunks(), value_set=self._ids))


def with_text(schema: pa.Schema) -> pa.Schema:
    """Return the schema of reveals with the text behind ``token_id``."""
    return schema.insert(schema.get_field_index("token_id") + 1, TEXT)


def add_text(chunk: pa.Table, pieces: Pieces) -> pa.Table:
    """Return reveals with the column ``text``."""
    place = chunk.column_names.index("token_id") + 1
    return chunk.add_column(place, TEXT, pieces.of(chunk["token_id"]))
