"""Every numerical claim of the paper's appendix, re-derived: the paper's number, ours, whether it holds."""

from collections.abc import Iterator

from orderlens.claims.audit import competition, concavity, model
from orderlens.claims.audit.model import Claim, Standing

__all__ = ["CLAIM_COUNT", "Claim", "Standing", "check_claims"]

_DERIVATIONS = (
    *model.CLAIMS,
    *concavity.CLAIMS,
    *competition.CLAIMS,
    *competition.SPREADING_CLAIMS,
    *model.REPORTED_CLAIMS,
)
CLAIM_COUNT = len(_DERIVATIONS)


def check_claims() -> Iterator[Claim]:
    """Re-derive the claims one after the other, in the order of the paper."""
    for derive in _DERIVATIONS:
        yield derive()
