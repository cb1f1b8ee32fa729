"""Prints docs/glossary.md from src/orderlens/analysis/glossary.toml; a test compares the two.

python recipes/glossary.py > docs/glossary.md
"""

from orderlens.analysis.glossary import as_markdown

print(as_markdown(), end="")
