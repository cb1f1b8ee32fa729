"""Surroundings that refuse: full disks, missing packages, deleted folders, tokenizers that cannot spell."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import orderlens as ol
from orderlens.cli.main import explain, main

TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps for a while in the sun. "
SMALL = "--steps 1 --layers 1 --width 16 --heads 1 --vocab-size 300 --window 32 --block-size 8 --batch-size 2"
NO_TORCH = """
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Gone())
"""


def orderlens(folder, *arguments, before=""):
    """Run the command in a process of its own, after some Python code."""
    code = f"import sys\n{before}\nfrom orderlens.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def one_error(done, code, *words):
    lines = [line for line in done.stderr.splitlines() if line.startswith("orderlens: ")]
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert all(word in lines[0] for word in words), lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    samples = [ol.Sample(str(i), [1, 2], [3, 4, 5, 6 + i]) for i in range(4)]
    ol.score("hmm:block=8", samples, ["forced-ar", "random"], out=out)
    return out


@pytest.mark.parametrize(
    ("verb", "most", "whole"),
    [
        ("analyze", 600, set()),
        pytest.param("figures", 600, set(), marks=pytest.mark.slow),
        pytest.param("train", 600, {"corpus.json"}, marks=pytest.mark.slow),
        ("train", 30_000, {"corpus.json", "tokenizer.json", "heldout.npy", "0.npy", "metrics.jsonl"}),
    ],
)
def test_a_full_disk_leaves_no_half_files(run, tmp_path, verb, most, whole):
    # A module compiled under the limit would be stored cut off, for all later tests.
    no_bytecode = "import sys; sys.dont_write_bytecode = True"
    limit = f"{no_bytecode}; import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))"
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(TEXT * 40, encoding="utf-8")
    commands = {
        "analyze": ["analyze", run, "--bootstrap", 5, "--out", out / "tables.json", "--format", "json"],
        "figures": ["figures", run, "--figure", "lorenz", "--format", "svg", "--out", out],
        "train": ["train", "--data", text, *SMALL.split(), "--device", "cpu", "--out", out],
    }
    done = orderlens(tmp_path, *commands[verb], before=limit)
    one_error(done, 1, "cannot write", "larger than allowed here")
    assert {path.name for path in out.rglob("*") if path.is_file()} <= whole


def test_a_missing_torch_is_named(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    ol.generate("hmm:block=8", ["abc"], ["forced-ar"], max_new_tokens=4, out=tmp_path / "run")
    trained = ["train", "--data", "text.txt", "--out", "model"]
    rated = ["analyze", "run", "--evaluator", "tiny-ar", "--bootstrap", 0, "--table", "generation"]
    for command in (trained, rated):
        one_error(orderlens(tmp_path, *command, before=NO_TORCH), 2, "orderlens[torch]")


def test_a_deleted_folder_is_said_so(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["orders"]) == 2
    assert "the folder you are in was deleted" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_a_tokenizer_that_cannot_spell_is_refused(tmp_path, capsys, kind):
    tokenizers = pytest.importorskip("tokenizers")
    text, file = tmp_path / "text.txt", tmp_path / "tokenizer.json"
    text.write_text(TEXT, encoding="utf-8")
    known = {"<|mask|>": 0, "<|eos|>": 1, "the": 2, "a": 3}
    words = tokenizers.Tokenizer(getattr(tokenizers.models, kind)(known, unk_token="[UNK]"))
    words.add_special_tokens(["<|mask|>", "<|eos|>"])
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(file))
    wanted = ["train", "--data", str(text), "--tokenizer", str(file), "--out", str(tmp_path / "m")]
    assert main([*wanted, "--steps", "1", "--device", "cpu"]) == 2
    assert "cannot encode this text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "--out", "/"], "is the root of the file system"),
        (["figures", "RUN", "--out", "s3://bucket/x"], "is an address; only runs can be written to one"),
        (["score", "--model", "tiny-ar", "--out", "r"], "give it to --evaluator"),
        (["score", "--orders", "random:" + "9" * 30, "--model", "hmm", "--out", "r"], "at most 18 digits"),
        (["generate", "--seed", str(2**63), "--model", "hmm", "--out", "r"], "must fit into 64 bits"),
        (
            ["score", "--model", "hmm", "--block-size", "99999", "--out", "r"],
            "block=99999 must be at most 32768",
        ),
        (
            ["score", "--model", "hmm", "--data", "https://e.org/a.jsonl", "--out", "r"],
            "is an address; download",
        ),
        (
            ["generate", "--prompt", "a", "--data", "file", "--out", "r"],
            "replace --data; leave out",
        ),
        (["generate", "--prompt", "a", "--data", "passages", "--out", "r"], "replace --data; leave out"),
        (
            ["score", "--model", "hmm", "--data", "ftp://e.org/a", "--out", "r"],
            "'ftp://e.org/a' is an address",
        ),
        (
            ["score", "--model", "hmm", "--data", "http:/e.org/a.csv", "--out", "r"],
            "'http://e.org/a.csv' is an",
        ),
        (["score", "--model", "hmm", "--out", "http:/e.org/a"], "did you mean http://e.org/a?"),
        (["analyze", "s3:/bucket/run"], "did you mean s3://bucket/run?"),
        (["score", "--model", "http://e.org/a", "--out", "r"], "is an address; give hf:ORG/NAME"),
        (
            ["score", "--model", "hmm", "--orders", "max-prob+top=999999999999", "--out", "r"],
            "at most 999,999,999",
        ),
        (
            ["generate", "--model", "hmm", "--orders", "sampled-position:temp=inf", "--out", "r"],
            "temp must be a finite number of at least 1e-06",
        ),
        (
            ["score", "--model", "hmm", "--orders", "lookahead-gain:n=1000001", "--out", "r"],
            "n must be a number between 2 and 1,000,000",
        ),
        (
            ["generate", "--model", "hmm", "--template", "a [[99999999]] b", "--out", "r"],
            "the hole [[99999999]] is too large; a hole has at most 999,999 tokens",
        ),
        (["train", "--data", "file", "--steps", "-1", "--out", "m"], "must be positive, not -1"),
        (["analyze", ""], "the path of the run folder is empty"),
        (["score", "--model", "", "--out", "r"], "the model's name is empty; give tiny"),
        (["analyze", "nowhere"], "nowhere: it does not exist; 'orderlens runs list FOLDER' lists runs"),
        (["runs", "show", "nowhere"], "it has no spec.json; 'orderlens runs list FOLDER' lists runs"),
        (
            ["score", "--model", "zzz", "--out", "r"],
            "unknown model 'zzz'; --model takes tiny, smol, hmm, hf:ORG/NAME or the path of a folder",
        ),
        (["models", "get", "nope"], "'nope' cannot be fetched with this command; only smol can"),
        (
            ["score", "--model", "hmm", "--orders", "max-prb", "--out", "r"],
            "unknown order 'max-prb'; did you mean 'max-prob'? 'orderlens orders' lists all\n",
        ),
        (
            ["score", "--model", "hmm", "--orders", "zzz", "--out", "r"],
            "unknown order 'zzz' (orders: forced-ar, ",
        ),
        (
            ["score", "--model", "hmm", "--orders", "random+tops=2", "--out", "r"],
            "unknown rule 'tops'; did you mean 'top'? 'orderlens orders' lists all\n",
        ),
        (["analyze", "file"], "file is a file, not a folder"),
        (["train", "--data", "file", "--out", "m", "--window", str(10**30)], "window"),
        (["train", "--data", "file", "--out", "m", "--block-size", "0"], "--block-size 0 must be at least 1"),
        (["score", "--model", "hmm", "--out", "--json"], "--out needs a value"),
        (["score", "--model", "hmm", "--out=--json"], "'--json' looks like an option"),
        (
            ["score", "--model", "hmm", "--orders", "forced-ar", "random", "--out", "r"],
            "unexpected argument 'random'; separate list items with commas",
        ),
        (["score", "--limit", "1.5", "--out", "r"], "--limit '1.5' must be a whole number"),
        (
            ["generate", "--temperature", "warm", "--out", "r"],
            "temperature 'warm' must be a number, START:END",
        ),
        (["view", "file", "--port", "99999"], "--port 99999 must be at most 65535"),
        (["score", "--model", "hmm", "--limit", "2", "--out", "file/r"], "file is a file; choose another"),
        (
            ["score", "--model", "hmm", "--limit", "2", "--out", "link/r"],
            "link is a link to gone, which does",
        ),
        (["analyze", "nowhere", "--out", "file/r"], "cannot write file/r: a part of the path is a file"),
        (["figures", "nowhere", "--out", "file"], "cannot write file: a part of the path is a file"),
        (["report", "nowhere", "--out", "."], "cannot write .: it is a folder; name a file"),
    ],
)
def test_absurd_requests_are_refused_by_name(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text", encoding="utf-8")
    (tmp_path / "link").symlink_to("gone")
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (ModuleNotFoundError("No module named 's3fs'", name="s3fs"), 2, "pip install 's3fs'"),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
        (MemoryError(), 1, "not enough memory"),
        (OverflowError("int too large"), 2, "too large"),
        (PermissionError(13, "Permission denied", "f"), 1, "f: it is read-only"),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"), 2, "no credentials"),
        (KeyError("x"), 1, "internal error, KeyError"),
    ],
)
def test_foreign_errors_are_one_line_with_a_remedy(error, code, word):
    message, found = explain(error)
    assert (found, word in message) == (code, True), message


def test_json_of_a_listing_is_json_on_any_terminal(tmp_path):
    done = orderlens(tmp_path, "orders", "--json", before="sys.stdout.reconfigure(encoding='ascii')")
    assert {row["id"] for row in json.loads(done.stdout)} >= {"forced-ar", "random"}
