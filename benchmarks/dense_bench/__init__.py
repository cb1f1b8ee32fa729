"""Parts of ``bench_dense.py``."""
