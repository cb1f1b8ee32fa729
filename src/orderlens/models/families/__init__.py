"""One file per family of checkpoints: how its files are read and which body they belong to."""
