"""Reads the files of a checkpoint folder: configuration, tensors, tokenizer, token roles, chat template."""
