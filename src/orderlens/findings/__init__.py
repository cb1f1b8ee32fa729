"""What the paper and we claim, as lists of checks for ``analysis.judge``. Studies in, findings out.

``fixed``, ``decoding`` and ``sweep`` are the paper's claims on C4; ``correctness`` and ``tiers`` ask what a
trace says about the answer, ``parallel`` what committing several tokens per pass costs; ``catalogue`` names
them and takes plug-ins. Knows no model, no page and no picture.
"""

from orderlens.findings.catalogue import FINDINGS, read

__all__ = ["FINDINGS", "read"]
