"""Decoding: rows of a model become position statistics, orders choose, traces are recorded."""
