"""The Llama-like network, dense or with experts: LLaDA-8B, 1.5 and 2.x, Dream, SDAR, Fast-dLLM v2, smol."""
