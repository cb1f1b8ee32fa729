"""From a request to a run: spec, units, workers, and the loop that computes and commits."""
