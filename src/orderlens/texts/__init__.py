"""Input: rows, samples, their sources, and traces that other decoders recorded."""
