"""Write the frozen items of the bundled tasks and print their digests for ``orderlens.tasks.bundled``.

PYTHONPATH=src:recipes python -m bundled_tasks.freeze src/orderlens/tasks/data
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from pathlib import Path
from typing import Any

from bundled_tasks.generator import items

N_ITEMS, N_QUESTIONS = 2400, 100


def frozen() -> dict[str, list[dict[str, Any]]]:
    """Return the items by the name of their file."""
    return {
        "arith": items("arith", "test", N_ITEMS),
        "choice": items("choice", "test", N_ITEMS),
        "questions": items("arith", "test", N_QUESTIONS, level=1),
    }


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False, separators=(',', ':'))}\n" for row in rows).encode()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in frozen().items():
        text = as_lines(rows)
        (folder / f"{name}.jsonl.xz").write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
        print(f'    "{name}": "{hashlib.sha256(text).hexdigest()}",')


if __name__ == "__main__":
    main()
