"""The same protocol where rename is not atomic: an in-memory file system and an S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow.fs
import pytest

from orderlens.errors import CorruptRunError, RunError, StorageError
from orderlens.runs.loop import WorkerRole, execute
from orderlens.store import remote
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder, open_folder
from orderlens.store.reader import open_run
from orderlens.store.remote import RemoteFolder
from orderlens.store.specfile import create_spec
from orderlens.store.verify import repair_run, verify_run
from orderlens.store.writer import RunWriter, open_writer

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def s3() -> Iterator[object]:
    """An s3fs file system on a local S3 server with an empty bucket."""
    s3fs = pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    files = s3fs.S3FileSystem(
        key="k",
        secret="s",
        endpoint_url=f"http://{host}:{port}",
        client_kwargs={"region_name": "us-east-1"},
    )
    files.call_s3("create_bucket", Bucket="bucket")
    yield files
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def files(request) -> Iterator[object]:
    """One remote file system per run of the test."""
    if request.param == "s3":
        yield request.getfixturevalue("s3")
        return
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()


@pytest.fixture
def place(files, request) -> str:
    """A fresh address on it."""
    scheme = files.protocol if isinstance(files.protocol, str) else files.protocol[0]
    return f"{scheme}://bucket/{request.node.name.translate(str.maketrans('[]', '--'))}"


def compute(worker, place: str, files: object, units: int = 4) -> None:
    with open_writer(place, worker.spec(units), files) as writer:
        execute(writer, worker.keyed_units(units), worker.tables)


def tables(place: str, files: object) -> dict[str, list[dict]]:
    run = open_run(place, files)
    assert run.is_complete
    return {name: run.table(name).to_arrow().to_pylist() for name in ("reveals", "outputs", "samples")}


def test_a_run_is_the_same_as_on_a_local_disk(place, files, worker, tmp_path) -> None:
    compute(worker, place, files)
    worker.compute(str(tmp_path / "local"), 4)
    assert tables(place, files) == tables(str(tmp_path / "local"), None)
    assert len(open_run(place, files).trace("s0001-0", "random")) == 24
    report = verify_run(open_folder(place, files))
    assert report.ok, report.findings


def test_sql_reads_it_in_place(place, files, worker) -> None:
    pytest.importorskip("duckdb")
    compute(worker, place, files)
    run = open_run(place, files)
    (row,) = (
        run.sql("SELECT count(*) AS n, sum(target_logprob::DOUBLE) AS s FROM reveals").to_arrow().to_pylist()
    )
    assert row["n"] == 4 * 96
    assert row["s"] == pytest.approx(sum(run.reveals().to_arrow()["logq"].to_pylist()), rel=1e-9)


def test_an_interrupted_run_resumes(place, files, worker) -> None:
    class StopError(Exception):
        pass

    def interrupted(unit: int):
        if unit == 2:
            raise StopError
        return worker.tables(unit)

    with pytest.raises(StopError), open_writer(place, worker.spec(4), files) as writer:
        execute(writer, worker.keyed_units(4), interrupted)
    assert not open_run(place, files).is_complete
    computed: list[int] = []
    with open_writer(place, worker.spec(4), files) as writer:
        execute(writer, worker.keyed_units(4), lambda unit: computed.append(unit) or worker.tables(unit))
    assert computed == [2, 3]
    assert len(tables(place, files)["outputs"]) == 16


def test_parts_without_a_record_do_not_exist(place, files, worker) -> None:
    compute(worker, place, files, 2)
    folder = open_folder(place, files)
    (name,) = [item for item in folder.sizes("parts/reveals") if "unit-0001" in item]
    folder.put(name.replace("unit-0001", "unit-0009"), folder.read(name))
    assert len(open_run(place, files).samples()) == 8


def test_the_first_record_wins(place, files, worker) -> None:
    one, two = (open_writer(place, worker.spec(1), files) for _ in range(2))
    assert one.commit("unit-0000", worker.tables(0))
    assert not two.commit("unit-0000", worker.tables(5))
    assert one.folder.create("x", b"1")
    assert not two.folder.create("x", b"2")
    assert one.folder.read("x") == b"1"
    one.close()
    two.close()
    samples = open_run(place, files).samples().to_arrow()["sample_id"].to_pylist()
    assert set(samples) == {"s0000-0", "s0000-1"}


def test_creation_has_one_winner_among_many(place, files) -> None:
    wins: list[int] = []
    start = threading.Barrier(6)

    def rival(number: int) -> None:
        folder = open_folder(place, files)
        start.wait()
        if folder.create("units/u.json", b"%d" % number):
            wins.append(number)

    threads = [threading.Thread(target=rival, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert open_folder(place, files).read("units/u.json") == b"%d" % wins[0]


class Refusing:
    """Conditional writes that cross: S3 answers 409 some times, the object may be there afterwards."""

    protocol = "s3"

    def __init__(self, conflicts: int, code: str, later: bytes | None) -> None:
        self.left, self.code, self.later, self.kept = conflicts, code, later, dict[str, bytes]()

    def _strip_protocol(self, path: str) -> str:
        return path.removeprefix("s3://")

    def unstrip_protocol(self, path: str) -> str:
        return f"s3://{path}"

    def cat_file(self, path: str, **_: object) -> bytes:
        if path not in self.kept:
            raise FileNotFoundError(path)
        return self.kept[path]

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        assert mode == "create"
        if self.left:
            self.left -= 1
            if self.left == 0 and self.later is not None:
                self.kept[path] = self.later
            cause = Exception()
            cause.response = {"Error": {"Code": self.code}}
            raise OSError(5, self.code) from cause
        self.kept[path] = data


@pytest.mark.parametrize(
    ("conflicts", "code", "later", "wanted"),
    [
        (2, "ConditionalRequestConflict", None, True),  # the rival gave up
        (2, "ConditionalRequestConflict", b"theirs", False),
        (1, "PreconditionFailed", b"theirs", False),
        (1, "PreconditionFailed", b"mine", True),  # a retry met our own request
        (9, "ConditionalRequestConflict", None, StorageError),
        (1, "AccessDenied", None, StorageError),
    ],
)
def test_conditional_writes_that_cross(conflicts, code, later, wanted, monkeypatch) -> None:
    monkeypatch.setattr(remote, "_CONFLICT_PAUSES_S", (0.0, 0.0, 0.0))
    folder = RemoteFolder(Refusing(conflicts, code, later), "s3://bucket/run")
    if wanted is StorageError:
        with pytest.raises(StorageError, match=code):
            folder.create("claims/u.json", b"mine")
    else:
        assert folder.create("claims/u.json", b"mine") is wanted


def test_where_the_last_writer_wins_no_rows_are_lost_or_doubled(place, files, worker, monkeypatch) -> None:
    one, two = (open_writer(place, worker.spec(1), files) for _ in range(2))
    for writer in (one, two):  # a service that knows no conditional requests
        monkeypatch.setattr(writer.folder, "exclusive", False)
        monkeypatch.setattr(
            writer.folder,
            "create",
            lambda name, data, durable=True, folder=writer.folder: folder.put(name, data) or True,
        )
    one.commit("unit-0000", worker.tables(0))
    two.commit("unit-0000", worker.tables(0))
    one.commit("unit-0001", worker.tables(1))
    two.commit("unit-0001", worker.tables(7))  # a worker that computed something else
    one.finish(["unit-0000", "unit-0001"])
    two.finish(["unit-0000", "unit-0001"])
    one.close()
    two.close()
    assert len(tables(place, files)["samples"]) == 8
    assert verify_run(open_folder(place, files)).ok


def test_threads_share_a_run(place, files, worker) -> None:
    threads = [threading.Thread(target=compute, args=(worker, place, files, 6)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tables(place, files)["samples"]) == 24
    assert verify_run(open_folder(place, files)).ok


def test_damage_is_found_and_repaired(place, files, worker) -> None:
    compute(worker, place, files)
    before = tables(place, files)
    folder = open_folder(place, files)
    (name,) = [item for item in folder.sizes("parts/reveals") if "unit-0001" in item]
    folder.put(name, folder.read(name)[:-9])
    with pytest.raises(CorruptRunError, match="is damaged"):
        open_run(place, files).reveals().to_arrow()
    assert repair_run(folder).redo == ["unit-0001"]
    compute(worker, place, files)
    assert tables(place, files) == before


def test_compaction(place, files, worker) -> None:
    compute(worker, place, files)
    before = tables(place, files)
    done = compact_run(open_folder(place, files))
    assert (done.parts_before, done.parts_after) == (8, 2)
    after = tables(place, files)
    assert after["samples"] == before["samples"]
    assert after["outputs"] == before["outputs"]
    assert verify_run(open_folder(place, files)).ok


class CrashError(BaseException):
    """Stands for the death of the process."""


def dying(folder: RemoteFolder, operation: int) -> RemoteFolder:
    """Return the folder with a crash at the n-th change: odd numbers before it, even ones after it."""
    left = [operation]

    def wrapped(change):
        def call(*arguments, **options):
            for moment in ("before", "after"):
                result = None if moment == "before" else change(*arguments, **options)
                left[0] -= 1
                if left[0] == 0:
                    raise CrashError
            return result

        return call

    for name in ("put", "create", "remove"):
        setattr(folder, name, wrapped(getattr(folder, name)))
    return folder


def compute_until(worker, folder: RemoteFolder) -> bool:
    """Compute a run; say whether it got to the end."""
    writer = None
    try:
        writer = RunWriter(folder, create_spec(folder, worker.spec(2), {}), 60.0)
        execute(writer, worker.keyed_units(2), worker.tables)
    except CrashError:
        if writer is not None:
            writer._claims._stop.set()  # a dead process renews nothing
        return False
    return True


def test_a_crash_at_any_operation_is_survived_without_atomic_rename(worker) -> None:
    memory = fsspec.filesystem("memory")
    compute(worker, "memory://crash/straight", memory, 2)
    expected = tables("memory://crash/straight", memory)
    for operation in range(1, 200):
        place = f"memory://crash/{operation}"
        completed = compute_until(worker, dying(RemoteFolder(memory, place), operation))
        for name in open_folder(place).sizes("claims"):
            open_folder(place).remove(name)  # its lease runs out
        compute(worker, place, memory, 2)
        assert tables(place, memory) == expected, operation
        assert verify_run(open_folder(place)).ok, operation
        if completed:
            break
    assert completed
    assert operation > 20
    memory.store.clear()


def test_a_different_spec_is_refused(place, files, worker) -> None:
    compute(worker, place, files, 2)
    with pytest.raises(RunError, match="units: the run has 2, requested 3"):
        open_writer(place, worker.spec(3), files)


def test_a_folder_of_runs(place, files, worker) -> None:
    for name in ("a", "b"):
        compute(worker, f"{place}/{name}", files, 1)
    assert open_run(place, files).names == ["a", "b"]


def test_addresses_and_arrow_file_systems_are_understood(tmp_path, worker) -> None:
    assert isinstance(open_folder("memory://x/y"), RemoteFolder)
    assert isinstance(open_folder(tmp_path.as_uri()), LocalFolder)
    assert isinstance(open_folder(tmp_path, pyarrow.fs.LocalFileSystem()), LocalFolder)
    inner = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    compute(worker, "deep/run", inner, 2)
    assert (tmp_path / "deep" / "run" / "complete.json").exists()
    assert len(open_run("deep/run", inner).samples()) == 8


def test_names_are_listed_deep_or_not_and_removed_together(place, files, tmp_path) -> None:
    for folder in (open_folder(place, files), LocalFolder(tmp_path)):
        assert folder.names() == folder.names("units") == folder.names(deep=False) == []
        for name in ("spec.json", "units/b.json", "units/a.json", "units-of-others/c.json"):
            folder.put(name, b"1")
        assert folder.names(deep=False) == ["spec.json"]
        assert folder.names("units") == ["units/a.json", "units/b.json"]
        folder.remove_many(["units/a.json", "units/none.json", "units-of-others/c.json"])
        assert folder.names() == ["spec.json", "units/b.json"]
        assert folder.exists("spec.json")
        assert not folder.exists("units")


def test_a_unit_costs_few_requests(s3, worker, monkeypatch) -> None:
    from aiobotocore.httpsession import AIOHTTPSession

    class Crew(WorkerRole):
        count, closes = 2, False

    sent: list[str] = []
    send = AIOHTTPSession.send

    async def counting(self, request):
        sent.append(f"{request.method} {request.url}")
        return await send(self, request)

    monkeypatch.setattr(AIOHTTPSession, "send", counting)
    units, place = worker.keyed_units(8), "s3://bucket/requests"
    for number in range(2):
        role = Crew()
        role.place = number
        with open_writer(place, worker.spec(8), s3, lease_s=3600) as writer:  # not renewed, however slow
            execute(writer, units, worker.tables, role=role)
    one_each = len(sent)
    with open_writer(place, worker.spec(8), s3) as writer:
        writer.finish(units)
    tables_of_a_unit = 2
    # A claim, its tables and its record; what a worker asks when it comes and goes does not grow with units.
    assert one_each <= (2 + tables_of_a_unit) * len(units) + 2 * 11, "\n".join(sent)
    # Closing reads each record once and removes all claims with one request.
    assert len(sent) - one_each <= len(units) + 20, "\n".join(sent[one_each:])
    assert not open_folder(place, s3).names("claims")
    assert open_run(place, s3).is_complete
