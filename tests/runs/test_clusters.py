"""Real launchers: torchrun, a Ray cluster that loses a node, an S3 server (minutes: ``pytest -m slow``)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orderlens as ol
from orderlens.runs.worker_log import read_states
from orderlens.store.folder import open_folder
from orderlens.testing import assert_same_rows

pytestmark = pytest.mark.slow
SAMPLES = [ol.Sample(f"s{i}", "the ", "a text of some length"[: 8 + i]) for i in range(8)]
ORDERS = ["forced-ar", "random"]


def score(out: Path | str, **more: object) -> ol.Run:
    return ol.score("hmm", SAMPLES, ORDERS, batch_size=1, out=out, **more)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> ol.Run:
    return score(tmp_path_factory.mktemp("alone") / "run")


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
    assert done.stdout.count("mean log q") == 1  # one rank speaks
    run = ol.open_run(tmp_path / "run")
    assert run.reveals().to_arrow().equals(alone.reveals().to_arrow())
    assert len(read_states(open_folder(tmp_path / "run"))) == 2


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a folder on an S3 server that other processes find through the environment."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
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
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, each with room for one worker."""
    tools = pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    found = tools.Cluster(initialize_head=True, head_node_args=node)
    found.add_node(num_cpus=1, object_store_memory=10**8)
    yield found
    found.shutdown()


def test_a_node_that_disappears_costs_no_rows(alone: ol.Run, cluster: Any, tmp_path: Path) -> None:
    lost = []

    def lose_a_node() -> None:
        folder, end = open_folder(tmp_path / "run"), time.monotonic() + 180
        while time.monotonic() < end:
            if (tmp_path / "run").exists() and len(read_states(folder)) == 2:
                break
            time.sleep(0.05)
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        lost.append(len(cluster.worker_nodes))

    thread = threading.Thread(target=lose_a_node)
    thread.start()
    run = score(tmp_path / "run", engine=ol.Engine("ray", 2, cluster.address, threads=1))
    thread.join()
    assert lost == [0]
    assert_same_rows(run, alone)
