"""CUDA kernels that several families use, written in Triton. Imported only when a CUDA device is used.

Each has a counterpart in plain torch that computes the same function; the tests compare them.
"""
