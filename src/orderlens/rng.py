"""Random streams keyed by meaning, never by place in a batch.

The same (seed, sample id, order, purpose) gives the same numbers whatever else is computed beside it, so
results do not depend on batch size, worker count or a resume. No global random state is ever touched.
"""

from __future__ import annotations

import hashlib

import numpy as np

Key = str | int


def keyed_generator(seed: int, *keys: Key) -> np.random.Generator:
    """Return a generator that depends only on ``seed`` and ``keys`` (strings and ints are kept apart)."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (seed, *keys):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest.digest(), "little")))
