"""Token documents to fixed windows.

Every document is closed by EOS. Three kinds of window result, and their first token tells them apart:

* the whole windows of a document longer than one window, cut from its own start;
* a short document alone, filled up with EOS to the end (a chosen share of the short ones): this is where the
  model learns that nothing follows the end of a text;
* everything else end to end, each such window opened by one EOS.

So a text that starts a window without a leading EOS stands alone, which is also what a prompt looks like at
decoding time, and what follows its EOS is only ever EOS. Knows nothing of text or of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint16]


def pack(
    documents: Iterable[Sequence[int] | Tokens],
    window: int,
    eos_id: int,
    padded_share: float,
    rng: np.random.Generator,
) -> Tokens:
    """Return windows [n, window] that hold every token of ``documents`` exactly once, in packing order."""
    whole: list[Tokens] = []
    stream: list[Tokens] = []
    for document in documents:
        closed = np.append(np.asarray(document, np.uint16), np.uint16(eos_id))
        if len(closed) <= window and rng.random() < padded_share:
            whole.append(_filled(closed, window, eos_id)[None])
            continue
        cut = len(closed) // window * window
        if cut:
            whole.append(closed[:cut].reshape(-1, window))
        stream.append(closed[cut:])
    return np.concatenate([np.empty((0, window), np.uint16), *whole, _end_to_end(stream, window, eos_id)])


def _filled(tokens: Tokens, length: int, eos_id: int) -> Tokens:
    return np.pad(tokens, (0, length - len(tokens)), constant_values=eos_id)


def _end_to_end(pieces: Sequence[Tokens], window: int, eos_id: int) -> Tokens:
    joined = np.concatenate([np.empty(0, np.uint16), *pieces])
    rows = -(-len(joined) // (window - 1))
    body = _filled(joined, rows * (window - 1), eos_id).reshape(rows, window - 1)
    return np.pad(body, ((0, 0), (1, 0)), constant_values=eos_id)
