"""score, generate, sweep and the listings, run as commands in this process; exit codes and messages."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import orderlens as ol
from orderlens.cli.main import main

TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps for a while in the sun. " * 3


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(
        "\n".join(json.dumps({"id": f"d{i}", "text": TEXT[i:]}) for i in range(3)), encoding="utf-8"
    )
    return str(path)


def run(capsys, *arguments):
    code = main([str(item) for item in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_score_prints_a_table_and_stores_the_run(capsys, data, tmp_path):
    out = tmp_path / "run"
    code, text, _ = run(
        capsys, "score", "--model", "hmm", "--data", data, "--orders", "forced-ar,random:2", "-o", out
    )
    assert code == 0
    assert "forced-ar" in text
    assert "random:2" in text
    assert len(ol.open_run(out).reveals().to_arrow()) == 2 * 3 * 128


def test_json_output_is_json(capsys, data, tmp_path):
    arguments = [
        "score",
        "--model",
        "hmm",
        "--data",
        data,
        "--orders",
        "forced-ar",
        "-o",
        tmp_path / "r",
        "--json",
    ]
    code, text, _ = run(capsys, *arguments)
    report = json.loads(text)
    assert code == 0
    assert report["orders"][0]["order"] == "forced-ar"
    assert report["orders"][0]["n_samples"] == 3
    again = run(capsys, *arguments)
    assert json.loads(again[1]) == report


def test_generate_and_sweep(capsys, data, tmp_path):
    common = ["--model", "hmm", "--data", data, "--orders", "max-prob", "--max-new-tokens", "9", "--json"]
    code, text, _ = run(capsys, "generate", *common, "-o", tmp_path / "g", "--temperature", "0.5")
    assert code == 0
    assert json.loads(text)["orders"][0]["temperature"] == 0.5
    code, text, _ = run(capsys, "sweep", *common, "-o", tmp_path / "s", "--temperatures", "0,1")
    assert code == 0
    assert [row["temperature"] for row in json.loads(text)["orders"]] == [0.0, 1.0]


def test_generate_shows_how_texts_begin_and_export_gives_token_texts(capsys, data, tmp_path):
    wanted = ["--model", "hmm", "--data", data, "--max-new-tokens", "8", "--no-stop-at-eos"]
    wanted += ["--orders", ",".join(f"random:{seed}" for seed in range(5))]
    code, text, _ = run(capsys, "generate", *wanted, "-o", tmp_path / "g")
    made = ol.open_run(tmp_path / "g").outputs().to_pandas()
    assert code == 0
    assert made.text[0].split()[0] in text
    assert "… and 3 more texts: orderlens runs export" in text
    code, _, _ = run(capsys, "runs", "export", tmp_path / "g", "--tokens", "-o", tmp_path / "reveals.parquet")
    assert code == 0
    rows = pq.read_table(tmp_path / "reveals.parquet").to_pandas()
    first = rows[(rows.sample_id == made.sample_id[0]) & (rows.seed == made.seed[0]) & ~rows.is_overflow]
    assert "".join(first.sort_values("position").text) == made.text[0]
    code, _, error = run(
        capsys, "runs", "export", tmp_path / "g", "--tokens", "--table", "outputs", "-o", tmp_path / "o.csv"
    )
    assert (code, "--tokens does not apply to --table" in error) == (2, True)


def test_texts_and_json_count_traces_that_overflow_left_without_a_likelihood(capsys, data, tmp_path):
    """A prompt of 16 and 32 new tokens end inside a block: reverse-ar fills the rest of it first."""
    written = ["generate", "--model", "hmm", "--data", data, "--prefix-tokens", 16, "--max-new-tokens", 32]
    asked = ["evaluate", "--model", "hmm", "--tasks", "arith", "--limit", 2, "--max-new-tokens", 5]
    orders = ["--orders", "reverse-ar,forced-ar"]
    for arguments, n in ((written, 3), (asked, None)):
        filled = [*arguments, *orders, "-o", tmp_path / f"{arguments[0]}-fill"]
        _, text, _ = run(capsys, *filled)
        count = json.loads(run(capsys, *filled, "--json")[1])["n_traces_overflow_before"]
        assert f"{count} of " in text
        assert n in (count, None)
        masked = [*arguments, *orders, "--overflow", "mask", "-o", tmp_path / f"{arguments[0]}-mask"]
        assert "n_traces_overflow_before" not in json.loads(run(capsys, *masked, "--json")[1])


def test_orders_are_added_to_a_run(capsys, data, tmp_path):
    wanted = ["score", "--model", "hmm", "--data", data, "--target-tokens", "8", "-o", tmp_path / "run"]
    assert run(capsys, *wanted, "--orders", "forced-ar")[0] == 0
    code, _, error = run(capsys, *wanted, "--orders", "random:2")
    assert (code, "--extend" in error) == (2, True)
    code, text, _ = run(capsys, *wanted, "--orders", "random:2", "--extend")
    assert code == 0
    assert "forced-ar" in text
    assert "random:2" in text
    assert len(ol.open_run(tmp_path / "run").reveals()) == 2 * 3 * 8


def test_measurements_are_stored(capsys, data, tmp_path):
    out = tmp_path / "m"
    measured = ["--target-tokens", "16", "--circulation", "3", "--noise-floor"]
    code, _, _ = run(
        capsys,
        "score",
        "--model",
        "hmm:block=8",
        "--data",
        data,
        "--orders",
        "forced-ar",
        *measured,
        "-o",
        out,
    )
    assert code == 0
    assert len(ol.open_run(out).table("circulation").to_arrow()) == 9
    assert len(ol.open_run(out).table("noise").to_arrow()) == 4


@pytest.mark.parametrize("verb", ["orders", "models", "tasks", "doctor"])
def test_listings(capsys, verb):
    code, text, _ = run(capsys, verb)
    assert code == 0
    assert text.strip()
    code, text, _ = run(capsys, verb, "--json")
    assert code == 0
    assert json.loads(text)


BAD = [
    (["--model", "hm"], "unknown model 'hm'; did you mean 'hmm'?"),
    (["--model", "./nowhere"], "'nowhere' does not exist"),
    (["--orders", "forced"], "did you mean 'forced-ar'?"),
    (["--data", "missing.jsonl"], "'missing.jsonl' does not exist"),
    (["--anchor", "middle"], "--anchor 'middle' is unknown; allowed: zero, prompt"),
    (["--target-tokens", "0"], "--target-tokens 0 must be at least 1"),
    (["--limit", "0"], "--limit 0 must be at least 1"),
    (["--batch-size", "0"], "--batch-size 0 must be at least 1"),
    (["--block-size", "0"], "--block-size 0 must be at least 1"),
    (["--limit", "many"], "--limit 'many' must be a whole number"),
    (["--colour"], "unknown option --colour"),
    (["--json=1"], "--json takes no value; write it alone"),
    (["--limit"], "--limit needs a value; --help says which"),
    (["--figures", "x"], "unknown option --figures; --help lists all"),
    (["--output", "x"], "unknown option --output; did you mean '--out'?"),
    (["--blok-size", "8"], "unknown option --blok-size; did you mean '--block-size'?"),
    (["--circulation", "-1"], "--circulation -1 must be at least 0"),
]


@pytest.mark.parametrize(("extra", "message"), BAD, ids=[" ".join(extra) for extra, _ in BAD])
def test_bad_input_is_one_line_and_exit_2(capsys, data, tmp_path, extra, message):
    arguments = {"--model": "hmm", "--data": data, "--out": str(tmp_path / "run")}
    arguments |= dict(zip(extra[::2], extra[1::2], strict=False))
    flat = [item for pair in arguments.items() for item in pair]
    code, _, err = run(capsys, "score", *flat, *(extra if len(extra) == 1 else []))
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("orderlens: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature=-1.0 must be a finite number"),
        (["--max-new-tokens", "20000"], "--max-new-tokens 20000 must be at most 16384"),
        (["--orders", "oracle-max-q"], "needs the target and cannot generate"),
    ],
)
def test_bad_generation_is_refused(capsys, data, tmp_path, arguments, message):
    code, _, err = run(capsys, "generate", "--model", "hmm", "--data", data, "-o", tmp_path / "r", *arguments)
    assert code == 2
    assert message in err


def test_doctor_refuses_an_unknown_model_as_score_does(capsys):
    code, _, err = run(capsys, "doctor", "--model", "tinny")
    assert code == 2
    assert "unknown model 'tinny'; did you mean 'tiny'? --model takes tiny, smol, hmm, hf:ORG/NAME or" in err


def test_another_spec_in_the_folder_exits_2(capsys, data, tmp_path):
    base = ["score", "--model", "hmm", "--data", data, "-o", tmp_path / "r", "--orders"]
    assert run(capsys, *base, "forced-ar")[0] == 0
    code, _, err = run(capsys, *base, "random")
    assert code == 2
    assert "orders" in err


def test_debug_shows_the_traceback(capsys, tmp_path):
    code, _, err = run(capsys, "score", "--model", "hm", "--out", tmp_path / "r", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_version_and_bare_call(capsys):
    assert run(capsys, "--version")[:2] == (0, f"{ol.__version__}\n")
    code, text, _ = run(capsys)
    assert code == 0
    assert "score" in text


@pytest.mark.parametrize("group", ["runs", "theory"])
def test_a_group_without_a_command_prints_its_help(capsys, group):
    code, text, err = run(capsys, group)
    assert code == 0
    assert "Commands" in text
    assert not err
