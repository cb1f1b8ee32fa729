"""Studies of several runs: a plan as data, one runner of its parts, one writer of its results."""
