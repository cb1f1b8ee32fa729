"""Every Triton kernel, and what it asks of a GPU. Imported only when a CUDA device is used."""
