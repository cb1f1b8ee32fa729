"""Decoding: reduce model outputs to position statistics, choose positions, record traces."""
