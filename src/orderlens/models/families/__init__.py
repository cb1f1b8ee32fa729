"""One file per checkpoint family: how its files are read, and which network they use."""
