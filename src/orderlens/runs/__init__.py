"""Turns a request into a run: spec, work units, workers, and the loop that computes and commits units."""
