"""Shared by torch families, independent of any: devices, the paged cache, sessions, CUDA graphs."""
