"""``smol``: SmolLM2-135M-Instruct from its published file, made order-agnostic by an adapter."""
