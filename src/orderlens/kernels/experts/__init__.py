"""The experts of a layer: the choice, the sorting into tiles, two grouped products and the weighted sum.

Each kernel has a counterpart in plain torch that computes the same function; the tests and the benchmark's
``--check`` compare them.
"""
