"""The trace store: run folders, their schema, writers and readers."""
