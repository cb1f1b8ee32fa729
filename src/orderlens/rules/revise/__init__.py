"""Revise rules: what may be changed or masked again after it was committed."""
