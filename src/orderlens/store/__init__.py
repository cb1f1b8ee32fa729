"""The trace store: run folders, their schema, writers and readers."""

NAMED_GRADER = "named-option"
"""The rule that takes the option which the response names: such verdicts have no level of guessing."""
