"""Studies of several runs: a plan in a folder, its parts with forward passes, and the results."""
