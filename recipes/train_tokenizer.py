"""Train the bundled tokenizer: byte-level BPE, 8,192 ids, single digits.

    PYTHONPATH=src python recipes/train_tokenizer.py CORPUS_FOLDER OUT/tokenizer.json

The sample (about 61 M characters) is deterministic: all C4 documents of the corpus, every 2nd of Wikinews,
every 3rd of Gutenberg, every 14th of Wikipedia, and the first documents of the task generators.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from orderlens.training.data import text_rows, train_tokenizer

EVERY = {"c4-en": 1, "wikinews-en": 2, "gutenberg": 3, "wikipedia-en": 14}
TASK_DOCUMENTS = 10_000


def natural_sample(folder: Path) -> Iterator[str]:
    seen = dict.fromkeys(EVERY, 0)
    for path in sorted(folder.glob("*.jsonl*")):
        for row in text_rows(path):
            source = str(row["source"])
            if seen[source] % EVERY[source] == 0:
                yield str(row["text"])
            seen[source] += 1


def task_sample() -> Iterator[str]:
    from bundled_tasks import training_documents

    for task in ("arith", "choice"):
        yield from itertools.islice(training_documents(task, 0), TASK_DOCUMENTS)


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = train_tokenizer(itertools.chain(natural_sample(folder), task_sample()), vocab_size=8192)
    out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out))
    print(f"{out}: {tokenizer.get_vocab_size()} ids")


if __name__ == "__main__":
    main()
