"""Who computes the units of a run."""
