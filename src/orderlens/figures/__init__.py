"""Figures of a run: each module has a tested ``data`` function and a ``draw`` function that only draws."""

from orderlens.figures.catalogue import FIGURES, draw_figures, figure_names

__all__ = ["FIGURES", "draw_figures", "figure_names"]
