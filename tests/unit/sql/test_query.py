"""A query answers about its run, of one rank or many, and reaches nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import psutil
import pytest

import stepscope
from stepscope.analyse.results import RESULTS
from stepscope.errors import InputError, UsageError
from stepscope.run import Run
from stepscope.sql import query
from stepscope.trace.run_directory import RankDirectory
from stepscope.trace.schema import TABLES

pytest.importorskip("duckdb", reason="the extra `sql` is not installed")

CAPTURE = Path(__file__).parents[2] / "data" / "kineto" / "alexnet_simple_add.json.gz"
#: What no query may reach.
SECRET = "not for a query"


@pytest.fixture(scope="module")
def captured() -> Run:
    return stepscope.open(CAPTURE)


@pytest.fixture
def two_ranks(tmp_path: Path) -> Run:
    """A run of two ranks; the second holds another program than the first."""
    for number, name in enumerate(("alexnet_simple_add", "cuda_event_sync")):
        directory = RankDirectory(tmp_path / "odd [run]* 'of' \"two\"" / f"rank{number}")
        directory.create()
        shutil.copyfile(CAPTURE.with_name(f"{name}.json.gz"), directory.capture / "trace.json.gz")
        directory.write_manifest({"status": "complete", "rank": number, "world_size": 2})
    return stepscope.open(next(tmp_path.iterdir()))


def test_a_capture_in_place(captured: Run) -> None:
    # 79 events of category `kernel` are in the JSON itself
    assert captured.query("select count(*) as n from spans where kind = 'kernel'").to_dicts() == [{"n": 79}]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_a_view(captured: Run, name: str) -> None:
    table = captured.tables[name].collect()
    answer = captured.query(f'select * from "{name}"')
    assert answer.height == table.height
    assert answer.columns == (table.columns if "rank" in table.columns else ["rank", *table.columns])
    for column in table.columns:
        assert answer[column].null_count() == table[column].null_count()


@pytest.mark.parametrize("name", [name for name, kind in RESULTS.items() if kind.extension == "csv"])
def test_every_result_is_a_view(captured: Run, name: str) -> None:
    result = captured.result(name)
    assert isinstance(result, pl.DataFrame)
    answer = captured.query(f'select * from "{name}"')
    assert answer.height == result.height
    assert set(answer.columns) == {"rank", *result.columns}


def test_times_of_results_keep_every_digit(captured: Run) -> None:
    kernels = captured.result("kernel_details")
    assert isinstance(kernels, pl.DataFrame)
    answer = captured.query('select "Start Time(us)" as t from kernel_details order by t')
    assert answer["t"].to_list() == kernels["Start Time(us)"].sort().to_list()


def test_nested_results_are_documents(captured: Run) -> None:
    answer = captured.query("select json->>'$.format' as format from documents where name = 'manifest'")
    assert answer.to_dicts() == [{"format": "kineto"}]
    assert {"communication", "communication_matrix"} <= set(captured.query("from documents")["name"])


def test_ranks_are_one_view(two_ranks: Run) -> None:
    for _ in range(2):  # from the captures, then from the tables that were kept
        answer = two_ranks.query(
            "select rank, count(*) as n from spans where kind = 'kernel' group by rank order by rank"
        )
        assert answer.rows() == [(0, 79), (1, 4)]
        two_ranks = stepscope.open(two_ranks.path)
    assert two_ranks.query("select distinct rank from op_statistic order by rank")["rank"].to_list() == [0, 1]


def test_findings_of_a_rank(captured: Run) -> None:
    found = captured.query("select place, cause, gain_ns, title from findings order by place")
    assert [(row["cause"], row["gain_ns"], row["title"]) for row in found.iter_rows(named=True)] == [
        (one.cause, one.gain_ns, one.title) for one in captured.findings
    ]


def test_a_job_has_its_results_and_findings(two_ranks: Run) -> None:
    assert two_ranks.query("select rank from cluster_ranks order by rank")["rank"].to_list() == [0, 1]
    found = two_ranks.query("select place, cause, title from findings order by place")
    assert found["place"].to_list() == list(range(1, found.height + 1))
    assert {"clocks", "findings", "spans"} <= set(two_ranks.query("show tables")["name"])


def test_a_rank_that_cannot_be_read_costs_itself(two_ranks: Run, caplog: pytest.LogCaptureFixture) -> None:
    (two_ranks.path / "rank1" / "capture" / "trace.json.gz").write_bytes(b"\x1f\x8bnothing")
    run = stepscope.open(two_ranks.path)
    assert run.query("select distinct rank from spans")["rank"].to_list() == [0]
    assert "rank1 is left out" in caplog.text
    (two_ranks.path / "rank0" / "capture" / "trace.json.gz").write_bytes(b"")
    with pytest.raises(InputError):
        stepscope.open(two_ranks.path).query("select 1 from spans")


def test_a_selection_of_steps() -> None:
    run = stepscope.open(CAPTURE.parents[1] / "xplane" / "steps.xplane.pb", steps=(1, 1))
    assert run.query("select number from steps")["number"].to_list() == [1]
    assert run.query("select min(ts) from spans").item() < run.query("select ts + dur from steps").item()


def test_types_that_polars_lacks_become_text(captured: Run) -> None:
    answer = captured.query("select interval 1 day as i, map {'a': 1} as m, sum(dur) as s, 1 as x, 2 as x from spans")
    (row,) = answer.iter_rows(named=True)
    assert (row["i"], row["m"], row["x"], row["x_1"]) == ("1 day", "{a=1}", 1, 2)
    assert answer["s"].dtype == pl.Int64


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("other")
    path = folder / "secret.csv"
    path.write_text(f"a\n{SECRET}\n")
    pl.DataFrame({"a": [SECRET]}).write_parquet(folder / "secret.parquet")
    yield path
    assert sorted(path.name for path in folder.iterdir()) == ["secret.csv", "secret.parquet"]
    assert path.read_text() == f"a\n{SECRET}\n"


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('{secret}')",
        "select * from '{secret}'",
        "select * from read_text('{secret}')",
        "select * from read_blob('{secret}')",
        "select * from read_json('{secret}')",
        "select * from read_parquet('{folder}/secret.parquet')",
        "select * from '{folder}/*.parquet'",
        "select * from parquet_metadata('{folder}/secret.parquet')",
        "select * from sniff_csv('{secret}')",
        "select * from glob('{folder}/*')",
        "select * from spans, read_csv('{secret}')",
        "select (select a from read_csv('{secret}')) from spans",
        "select * from query('select * from read_csv(''{secret}'')')",
        "select * from query_table('{secret}')",
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/proc/self/environ')",
        "select * from read_csv('https://example.org/a.csv')",
        "select * from read_parquet('s3://bucket/a.parquet')",
        "select getenv('HOME')",
        "select * from hidden",
        "select 1) to '{folder}/out.csv'; --",
        "copy spans to '{folder}/out.csv'",
        "copy (select 1) to '{folder}/out.parquet'",
        "copy (select 1) to '{secret}'",
        "export database '{folder}/all'",
        "import database '{folder}'",
        "attach '{folder}/other.db'",
        "attach 'https://example.org/a.db'",
        "install httpfs",
        "load httpfs",
        "install httpfs from community",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "reset lock_configuration",
        "set allowed_paths = ['{secret}']",
        "set memory_limit = '1TB'",
        "pragma enable_external_access = true",
        "pragma temp_directory = '{folder}'",
        "create table t as select * from read_csv('{secret}')",
        "create view v as select 1",
        "drop view spans",
        "insert into spans select * from spans",
        "delete from spans",
        "update spans set name = 'x'",
        "call dbgen(sf = 1)",
        "explain analyze copy spans to '{folder}/out.csv'",
        "with x as (delete from spans returning *) select * from x",
        "select 1; select 2",
        "begin; select 1",
        "use other",
        "vacuum",
        "",
        "-- nothing",
        "select",
    ],
)
def test_a_hostile_query_is_refused(captured: Run, secret: Path, sql: str) -> None:
    hidden = pl.DataFrame({"a": [SECRET]})  # a variable of the caller, which DuckDB would find by its name
    with pytest.raises(UsageError) as refusal:
        captured.query(sql.format(secret=secret, folder=secret.parent))
    assert hidden.height == 1
    assert SECRET not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_files_of_a_run_are_not_written(two_ranks: Run) -> None:
    two_ranks.query("from spans")
    kept = two_ranks.path / "rank0" / "tables" / "spans.parquet"
    before = kept.read_bytes()
    for sql in ("copy (select 1) to '{}'", "explain analyze copy (select 1) to '{}'"):
        with pytest.raises(UsageError):
            two_ranks.query(sql.format(str(kept).replace("'", "''")))
    assert kept.read_bytes() == before


def test_nothing_stays_behind(captured: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    captured.query("from spans")
    with pytest.raises(UsageError):
        captured.query("select nothing from spans")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_query(captured: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, ended = query.answer, []

    def observed(connection: query.Connection, select: str) -> pl.DataFrame:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            return answer(connection, select)
        except Exception as error:
            ended.append(type(error).__name__)
            raise

    monkeypatch.setattr(query, "answer", observed)
    with pytest.raises(KeyboardInterrupt):
        captured.query("select sum(sqrt(range)) from range(4000000000)")
    assert ended == ["InterruptException"]
    monkeypatch.undo()
    assert captured.query("select 1 as one").rows() == [(1,)]


def test_memory_is_bounded(captured: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 20))
    with pytest.raises(UsageError, match=r"more than 256MiB of memory\. Select fewer rows"):
        captured.query("select a.id, b.name, c.name from spans a, spans b, spans c")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from spanz", "No table or result is called 'spanz'. Did you mean spans?"),
        ("select * from qqqqqqq", "`stepscope query RUN` lists what can be named."),
        ("select durr from spans", '"durr" not found'),
        ("selec 1", "syntax error"),
        ("copy spans to 'x'", "A query only selects: COPY is refused."),
        ("select 1; select 2", "A query is one statement, not 2."),
    ],
)
def test_a_wrong_query_is_one_line(captured: Run, sql: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        captured.query(sql)
    assert said in str(refusal.value)


def test_without_the_extra(captured: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r"Install it: pip install 'stepscope\[sql\]'"):
        captured.query("select 1")
