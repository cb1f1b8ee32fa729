"""The trace store: run folders, their schema, writers and readers."""

NAMED_GRADER = "named-option"
"""The grader that extracts the option named in the response; its verdicts have no chance level."""
