"""Autoregressive models that score finished text (``--evaluator``): they have no reveal orders."""
