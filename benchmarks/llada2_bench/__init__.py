"""Parts of ``bench_llada2.py``."""
