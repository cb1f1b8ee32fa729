"""Figures of a run: each module has a tested ``data`` function and a ``draw`` function that only draws."""

from orderlens.figures.catalogue import FIGURES, Recipe, draw_figures, figure_names

__all__ = ["FIGURES", "Recipe", "draw_figures", "figure_names"]
