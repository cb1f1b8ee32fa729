"""Find corpus documents that share a run of 13 words with held-out text, so that training can skip them.

    PYTHONPATH=src python recipes/check_overlap.py CORPUS_FOLDER HELD_OUT.jsonl.gz recipes/left_out.txt

Writes one digest per such corpus document; `train_bundled.py prepare` skips these documents. Prints the
number of held-out documents that overlap. Run it again whenever the training corpus changes.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from pathlib import Path

from orderlens.training.data import read_documents

RUN = 13


def runs(text: str) -> set[int]:
    words = re.findall(r"\w+", text.lower())
    return {hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1)}


def document_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def main() -> None:
    corpus, held_out, out = (Path(argument) for argument in sys.argv[1:4])
    documents = [runs(text) for text in read_documents(held_out)]
    wanted = set().union(*documents)
    found: set[int] = set()
    left_out: list[str] = []
    for part in sorted(corpus.glob("*.jsonl*")):
        for text in read_documents(part):
            shared = runs(text) & wanted
            if shared:
                found |= shared
                left_out.append(document_digest(text))
    out.write_text("".join(f"{digest}\n" for digest in sorted(set(left_out))))
    touched = Counter(bool(document & found) for document in documents)
    print(f"{held_out.name}: {touched[True]} of {len(documents)} documents share a run of {RUN} words with")
    print(f"{len(left_out)} documents of the corpus, listed in {out}")


if __name__ == "__main__":
    main()
