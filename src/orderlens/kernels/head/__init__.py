"""The head on CUDA: the output matrix reduced on the fly, for any model that gives half-precision rows."""
