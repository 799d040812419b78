"""Captures at addresses: a real server of Amazon's protocol, the memory of this process, and faults on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepscope
from stepscope.cluster.reduction.engines import Engine
from stepscope.cluster.reduction.reduce_job import reduce_job
from stepscope.errors import InputError, NotARunError, NotATraceError, UsageError
from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.report.timeline.job_timeline import aligned

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed; `make test` installs it")
SHARED = Path(__file__).resolve().parents[5] / "shared" / "data"
SERIAL = Engine("serial")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket on a server in this process, which any process can reach."""
    pytest.importorskip("s3fs", reason="s3fs is not installed; `make test` installs it")
    server_of = pytest.importorskip("moto.server", reason="moto is not installed; `make test` installs it")
    server = server_of.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    name = f"traces-{os.urandom(6).hex()}"
    system.mkdir(name)
    yield f"s3://{name}"
    fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


@pytest.fixture
def memory() -> Iterator[str]:
    system = fsspec.filesystem("memory")
    yield "memory://job"
    system.rm("/", recursive=True)


def put(directory: Path, address: str) -> None:
    system, root = fsspec.core.url_to_fs(address)
    for path in directory.rglob("*"):
        if path.is_file():
            system.pipe_file(f"{root}/{path.relative_to(directory)}", path.read_bytes())
    system.invalidate_cache()


def content(job: Path) -> dict[str, object]:
    tables = stepscope.job(job).tables
    return {name: getattr(tables, name) for name in ("steps", "collectives", "operators", "losses", "groups")}


def assert_same(one: Path, other: Path) -> None:
    left, right = content(one), content(other)
    for name, table in left.items():
        assert table.equals(right[name]), name  # type: ignore[attr-defined]


def test_a_job_in_a_bucket_is_that_of_the_files(bucket: str, dlrm: Path, tmp_path: Path) -> None:
    put(dlrm, f"{bucket}/dlrm")
    reduce_job([str(dlrm)], tmp_path / "files", engine=SERIAL)
    assert reduce_job([f"{bucket}/dlrm"], tmp_path / "job", engine=Engine("processes", workers=2)) == (8, {})
    assert_same(tmp_path / "files", tmp_path / "job")
    assert sorted(path.name for path in (tmp_path / "job" / "rank3").iterdir()) == ["manifest.json", "summary.json"]

    # Again: nothing; after a change: that rank
    assert reduce_job([f"{bucket}/dlrm"], tmp_path / "job", engine=SERIAL) == (0, {})
    system = fsspec.filesystem("s3")
    changed = next(name for name in system.find(f"{bucket}/dlrm") if "worker2" in name)
    system.pipe_file(changed, system.cat_file(changed) + b"\n")
    system.invalidate_cache()
    assert reduce_job([f"{bucket}/dlrm"], tmp_path / "job", engine=SERIAL) == (1, {})


def test_captures_that_are_directories_are_fetched_whole_and_kept_if_asked(memory: str, tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared captures are not here")
    put(SHARED / "ascend" / "text_level2", f"{memory}/ascend")
    reduce_job([str(SHARED / "ascend" / "text_level2")], tmp_path / "files", engine=SERIAL)
    assert reduce_job([f"{memory}/ascend"], tmp_path / "job", engine=SERIAL, keep=True) == (2, {})
    assert_same(tmp_path / "files", tmp_path / "job")
    assert stepscope.open(tmp_path / "job").ranks[1].results["step_trace_time"].height == 1


def test_job_reads_an_address_and_keeps_nothing(memory: str, dlrm: Path) -> None:
    put(dlrm, memory)
    assert stepscope.job(memory, engine=SERIAL).tables.collectives.height == 64
    one = next(name for name in fsspec.filesystem("memory").find("/job") if "worker5" in name)
    assert stepscope.job(f"memory://{one}").tables.ranks["rank"].to_list() == [5]


def test_a_timeline_of_a_job_is_to_be_copied(memory: str, dlrm: Path, tmp_path: Path) -> None:
    TraceView().write_ranks(aligned(stepscope.open(dlrm)), tmp_path)
    put(tmp_path, memory)
    faults = stepscope.job(memory, engine=SERIAL).tables.ranks["fault"].to_list()
    assert faults
    assert all(fault.endswith("/job/trace_view.json is a timeline of several ranks.") for fault in faults)


def test_an_address_of_this_machine_is_a_path(dlrm: Path) -> None:
    assert stepscope.job(f"file://{dlrm}").tables.collectives.height == 64


def test_a_list_of_groups_that_is_longer_than_a_head_is_read(memory: str, tmp_path: Path) -> None:
    groups = ",".join(f'{{"pg_name": "{number}", "ranks": [0, 1]}}' for number in range(12_000))
    for rank in range(2):
        info = f'{{"backend": "nccl", "rank": {rank}, "world_size": 2, "pg_config": [{groups}]}}'
        event = '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
        text = f'{{"schemaVersion": 1, "distributedInfo": {info}, "traceEvents": [{event}]}}'
        (tmp_path / f"trace_{1 - rank}.pt.trace.json").write_text(text)
    put(tmp_path, memory)
    assert stepscope.job(memory, engine=SERIAL).tables.ranks.select("rank", "directory").rows() == [
        (0, "rank0"),
        (1, "rank1"),
    ]
    assert stepscope.job(memory, engine=SERIAL).tables.ranks["fault"].null_count() == 2


def test_what_is_wrong_with_an_address_is_one_line(bucket: str, memory: str) -> None:
    with pytest.raises(NotARunError, match="does not exist"):
        stepscope.job(f"{memory}/nothing")
    with pytest.raises(UsageError, match="Nothing here reads nonsense://"):
        stepscope.job("nonsense://somewhere")
    with pytest.raises((InputError, NotARunError)):
        stepscope.job("s3://another-bucket/that/is/not/there")
    fsspec.filesystem("memory").pipe_file("/job/notes.txt", b"x")
    with pytest.raises(NotATraceError, match="memory://job holds no capture"):
        stepscope.job(memory, engine=SERIAL)
