"""Models: the protocol, the exact control, and one file per family."""
