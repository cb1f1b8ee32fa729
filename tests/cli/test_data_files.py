"""Hostile data files, seeded and bounded: a verb that reads one ends with 0 or 2 and says why in one line."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orderlens.cli.main import main

BOUNDED = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
FIELDS = st.sampled_from(
    ["text", "prompt", "target", "suffix", "id", "logq", "golden", "question", "", "sample_id"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**30, 10**40)
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["\ud800", "\x00", "\x1b[2J", "\u202e", "the cat sat on the mat", "1e999", "#### 3"])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
ROWS = st.lists(st.dictionaries(FIELDS, VALUES, max_size=4) | VALUES, max_size=5)
PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
NESTED = b'{"text": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"


def json_lines(rows):
    return "\n".join(json.dumps(row) for row in rows).encode()


def csv_cells(rows):
    names = ["text", "id", "prompt", "logq", "sample_id"]
    lines = [",".join(names)]
    for row in rows:
        cells = [row.get(name, "") if isinstance(row, dict) else row for name in names]
        lines.append(",".join(str(cell) for cell in cells))
    return "\n".join(lines).encode(errors="surrogatepass")


def parquet(rows):
    sink = io.BytesIO()
    texts = [{"text": str(row).encode(errors="replace").decode()} for row in rows] or [{"text": "x"}]
    pq.write_table(pa.Table.from_pylist(texts), sink)
    return sink.getvalue()


@st.composite
def files(draw):
    """A file name and its bytes: made of rows or of noise, then perhaps cut, flipped or mislabelled."""
    rows = draw(ROWS)
    kind, content = draw(
        st.sampled_from(
            [("jsonl", json_lines(rows)), ("json", json.dumps(rows).encode()), ("csv", csv_cells(rows)),
             ("tsv", csv_cells(rows).replace(b",", b"\t")), ("txt", csv_cells(rows)),
             ("parquet", parquet(rows)), ("jsonl", NESTED)]
        )
    )  # fmt: skip
    packing = "" if kind == "parquet" else draw(st.sampled_from(sorted(PACKED)))
    data = bytearray(draw(st.just(PACKED[packing](content)) | st.binary(max_size=60)))
    for place in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=3)) if data else []:
        data[place] ^= 1 << draw(st.integers(0, 7))
    kept = draw(st.integers(0, len(data)) | st.just(len(data)))
    return (
        f"data.{draw(st.just(kind) | st.sampled_from(['jsonl', 'csv', 'txt', 'parquet']))}{packing}",
        bytes(data[:kept]),
    )


VERBS = {
    "score": [
        "--model",
        "hmm",
        "--orders",
        "forced-ar",
        "--prefix-tokens",
        "2",
        "--target-tokens",
        "2",
        "--limit",
        "2",
    ],
    "generate": [
        "--model",
        "hmm",
        "--orders",
        "random",
        "--prefix-tokens",
        "2",
        "--max-new-tokens",
        "2",
        "--limit",
        "2",
    ],
    "evaluate": [
        "--model",
        "hmm",
        "--orders",
        "forced-ar",
        "--tasks",
        "cmath",
        "--max-new-tokens",
        "2",
        "--limit",
        "2",
    ],
    "theory": [],
}


@BOUNDED
@given(
    files(), st.sampled_from(sorted(VERBS)), st.sampled_from([[], ["--allow-short"], ["--split", "lines"]])
)
def test_a_hostile_file_is_one_clear_line(file, verb, extra):
    name, data = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        source = {"evaluate": ["--source", f"cmath={path}"], "theory": ["profile", str(path)]}
        arguments = [verb, *source.get(verb, ["--data", str(path)]), *VERBS[verb]]
        arguments += extra if verb in ("score", "generate") else []
        arguments += [] if verb == "theory" else ["--out", str(Path(folder) / "run"), "--json"]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        said = [line for line in err.getvalue().splitlines() if line.strip()]
        assert code in (0, 2), err.getvalue()
        assert "Traceback" not in err.getvalue()
        assert "internal error" not in " ".join(said), said
        if code == 2:
            assert len([line for line in said if line.startswith("orderlens: ")]) == 1, said
            assert out.getvalue() == ""
            assert not any(part in err.getvalue() for part in ("\x1b[2J", "\x00", "\u202e"))
        assert path.read_bytes() == data
