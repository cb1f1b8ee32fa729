"""Parts that torch families share: devices, checkpoints, the paged cache, sessions. Knows no family."""
