"""All Triton kernels and their GPU requirements. Imported only when a CUDA device is used."""
