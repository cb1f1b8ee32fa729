"""Real launchers: torchrun, a Ray cluster that loses a node, an S3 server (minutes: ``pytest -m slow``)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import orderlens as ol
from orderlens.store.folder import open_folder
from orderlens.store.workers import read_states

pytestmark = pytest.mark.slow
SAMPLES = [ol.Sample(f"s{i}", "the ", "a text of some length"[: 8 + i]) for i in range(8)]
ORDERS = ["forced-ar", "random"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def score(out: Path | str, **more: object) -> ol.Run:
    return ol.score("hmm", SAMPLES, ORDERS, batch_size=1, out=out, **more)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> ol.Run:
    return score(tmp_path_factory.mktemp("alone") / "run")


def assert_same_rows(run: ol.Run, other: ol.Run) -> None:
    assert run.is_complete
    for name in other.tables:
        assert run.table(name).to_arrow().equals(other.table(name).to_arrow()), name


def test_torchrun_with_two_ranks(alone: ol.Run, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = ({"id": s.id, "prompt": s.prompt, "target": s.target} for s in SAMPLES)
    data.write_text("\n".join(json.dumps(row) for row in rows))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    verb = ["-m", "orderlens", "score", "--model", "hmm", "--data", str(data), "--orders", ",".join(ORDERS)]
    done = subprocess.run(
        [*launcher, *verb, "--batch-size", "1", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("reveals") == 1  # one rank speaks
    run = ol.open_run(tmp_path / "run")
    assert run.reveals().to_arrow().equals(alone.reveals().to_arrow())
    assert len(read_states(open_folder(tmp_path / "run"))) == 2


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a folder on an S3 server that other processes find through the environment."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    port = free_port()
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().call_s3("create_bucket", Bucket="bucket")
    yield "s3://bucket/run"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def test_two_workers_share_a_run_on_s3(alone: ol.Run, s3: str) -> None:
    assert_same_rows(score(s3, workers=2), alone)


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[tuple[str, list[psutil.Process]]]:
    """The address of a Ray cluster of two nodes, and the processes of the second."""
    pytest.importorskip("ray")
    ray = shutil.which("ray", path=str(Path(sys.executable).parent)) or pytest.skip("no ray command")
    port = free_port()
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    common = ["--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats"]
    temporary = Path("/tmp") / f"ray-{os.getpid()}"  # socket paths must be short
    head = [ray, "start", "--head", "--port", str(port), "--include-dashboard", "false", *common]
    subprocess.run([*head, "--temp-dir", str(temporary)], check=True, capture_output=True, env=quiet)
    before = {process.pid for process in psutil.process_iter()}
    second = [ray, "start", "--address", f"127.0.0.1:{port}", *common]
    subprocess.run(second, check=True, capture_output=True, env=quiet)
    born = [process for process in psutil.process_iter() if process.pid not in before]
    yield f"127.0.0.1:{port}", born
    subprocess.run([ray, "stop", "--force"], check=False, capture_output=True)
    shutil.rmtree(temporary, ignore_errors=True)


def test_a_node_that_disappears_costs_no_rows(
    alone: ol.Run, two_nodes: tuple[str, list[psutil.Process]], tmp_path: Path
) -> None:
    address, processes = two_nodes

    def lose_the_node() -> None:
        folder, end = open_folder(tmp_path / "run"), time.monotonic() + 180
        while time.monotonic() < end:
            if (tmp_path / "run").exists() and len(read_states(folder)) == 2:
                break
            time.sleep(0.1)
        for process in processes:
            for child in [*process.children(recursive=True), process] if process.is_running() else []:
                child.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=lose_the_node)
    thread.start()
    run = score(tmp_path / "run", engine=ol.Engine("ray", 2, address, threads=1))
    thread.join()
    assert_same_rows(run, alone)
