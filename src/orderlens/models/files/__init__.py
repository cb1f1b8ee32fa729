"""What lies in a checkpoint's folder: configuration, tensors, tokenizer, roles of tokens, chat template."""
