"""The live viewer: a local, read-only web application over runs."""
