"""LLaDA-2.0 and 2.1, mini and flash: native, exact, and fast on CUDA."""
