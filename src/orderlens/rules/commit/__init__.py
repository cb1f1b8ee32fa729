"""Commit rules: how many of an order's positions are taken in one pass."""
