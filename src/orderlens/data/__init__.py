"""Files that travel with the package: the bundled texts (passages.jsonl) and what other modules add."""
