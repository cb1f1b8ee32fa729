"""A sample for display, as plain data: its traces with tokens, passes, numbers, changes, uncertain steps.

Report, viewer, terminal and notebook draw these data and compute nothing else. Reads Arrow rows of the stored
tables; does not depend on files, models, colours or pages. ``run.sample(id)`` makes one from a run.
"""
