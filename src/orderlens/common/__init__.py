"""Shelves that every room may use: files, plain text, templates, machine, random streams, block grid."""
