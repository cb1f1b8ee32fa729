"""Training: from text to windows, the order-agnostic and autoregressive losses, and the training loop."""
