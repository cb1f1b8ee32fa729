"""Llama-like order-agnostic models over one body: LLaDA-8B and 1.5, Dream, SDAR, Fast-dLLM v2."""
