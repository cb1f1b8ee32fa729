"""Revise rules, which change or re-mask committed tokens."""
