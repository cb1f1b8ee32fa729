"""Training: text to windows, the order-agnostic and autoregressive objectives, and the loop around them."""
