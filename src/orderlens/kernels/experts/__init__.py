"""The experts of a layer: routing, sorting into tiles, two grouped products and the weighted sum.

Each kernel has a plain torch function that computes the same; the tests and the benchmark's ``--check``
compare them.
"""
