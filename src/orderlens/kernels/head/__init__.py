"""The fused head on CUDA: output matrix and statistics in one pass, for models with 16-bit hidden states."""
