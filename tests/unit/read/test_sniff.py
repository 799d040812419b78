"""Detection: which format a path has, which tool wrote it, and the message for a path without a known format."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepscope.errors import InputError, NotATraceError, UsageError
from stepscope.read import read_files, sniff
from stepscope.read.common import source
from stepscope.read.sniff import Capture, look
from tests.conftest import WriteTrace

PADDLE = Path(__file__).resolve().parents[2] / "data" / "paddle"

BASE = 1_700_000_000_000_000_000


def captures_of(*looks: list[Capture], window: str = "all") -> dict[int, list[str]]:
    return {rank: [one.name for one in group] for rank, group in sniff.ranks(looks, window).captures.items()}


def test_a_kineto_trace_says_whose_it_is(write_trace: WriteTrace) -> None:
    event = {"ts": 1234.5678, "dur": 1, "name": "a", "pid": 1, "tid": 1}
    path = write_trace(
        [event], distributedInfo={"rank": 3, "world_size": 8}, host_name="node7", baseTimeNanoseconds=BASE
    )
    (found,) = look(path)
    assert (found.format, found.rank, found.world_size, found.host) == ("kineto", 3, 8, "node7")
    assert found.window == BASE + 1_234_567
    assert (found.root, found.all, found.size) == (path, [path], path.stat().st_size)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-34.Jul_15.pt.trace.json", 34),
        ("mtia_rank_0.json", 0),
        ("RANK7.json.gz", 7),
        ("frank3.json", None),
        ("trace.json", None),
        ("worker0.1623.pt.trace.json", None),
    ],
)
def test_else_its_name_says_the_rank(write_trace: WriteTrace, name: str, rank: int | None) -> None:
    assert look(write_trace([], name=name))[0].rank == rank


def test_what_the_file_says_counts_more_than_its_name(write_trace: WriteTrace) -> None:
    assert look(write_trace([], name="rank9.json", distributedInfo={"rank": 2}))[0].rank == 2


def test_the_name_of_the_directory_says_the_rank_of_files_that_do_not(write_trace: WriteTrace, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
        write_trace([], name=f"rank{rank}/trace.json")
    assert [capture.rank for capture in look(tmp_path)] == [0, 1]


def test_a_journal_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "journal.ssj").write_bytes(b"SSJ1" + b"x" * 10)
    assert [capture.format for capture in look(tmp_path / "journal.ssj")] == ["journal"]


def test_real_captures_are_known(shared_data: Path) -> None:
    folder = shared_data / "kineto/hta"
    (old,) = look(folder / "cpu_only_old/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert (old.rank, old.world_size, old.host) == (34, 300, "twshared16453.15.atn5.facebook.com")
    assert look(folder / "trace_diff/control/control.json.gz")[0].rank == 3
    assert look(folder / "rank_unavailable/rank_not_found.json.gz")[0].rank is None


def test_every_real_kineto_file_in_one_directory(shared_data: Path) -> None:
    found = look(shared_data / "kineto")
    files = set((shared_data / "kineto").rglob("*trace.json.gz"))
    assert {capture.root for capture in found if capture.format == "kineto"} >= files
    assert len(files) > 15


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(NotATraceError, match=r"x\.json .*without traceEvents.*stepscope reads .*xplane\.pb"):
        look(tmp_path / "x.json")


# Directories of several processes


def windows_of(write_trace: WriteTrace, worker: str, *times: int, **document: object) -> None:
    for time in times:
        process = worker.rpartition("_")[2]
        event = {"ts": time, "dur": 1, "name": "a", "pid": int(process) if process.isdigit() else 1, "tid": 1}
        write_trace([event], name=f"{worker}.{BASE + time}.pt.trace.json", **document)


def test_processes_without_a_rank_are_ranks_in_order_of_host_and_process(
    write_trace: WriteTrace, tmp_path: Path
) -> None:
    for worker in ("node_10", "node_9", "box_77"):
        windows_of(write_trace, worker, 50, 10)
    found = sniff.ranks([look(tmp_path)])
    assert found.numbered == {0: "box_77", 1: "node_9", 2: "node_10"}
    assert [[one.window for one in group] for group in found.captures.values()] == [[10_000, 50_000]] * 3
    assert {one.host for group in found.captures.values() for one in group} == {"box", "node"}


@pytest.mark.parametrize(
    ("worker", "process", "host"),
    [("node_10", 10, "node"), ("worker2_step_12", 4711, None), ("worker3", 3, None), ("a_b_9", 9, "a_b")],
)
def test_a_worker_is_a_host_only_before_the_number_of_its_process(
    write_trace: WriteTrace, tmp_path: Path, worker: str, process: int, host: str | None
) -> None:
    event = {"ts": 1, "dur": 1, "name": "a", "pid": process, "tid": 1}
    write_trace([event], name=f"{worker}.{BASE}.pt.trace.json")
    [found] = sniff.ranks([look(tmp_path)]).captures.values()
    assert [one.host for one in found] == [host]


def test_a_process_that_says_its_rank_once_has_it_in_all_its_windows(write_trace: WriteTrace, tmp_path: Path) -> None:
    windows_of(write_trace, "node_9", 10)
    windows_of(write_trace, "node_9", 50, distributedInfo={"rank": 4})
    assert list(captures_of(look(tmp_path))) == [4]


@pytest.mark.parametrize(("window", "times"), [("all", [10, 30, 50]), ("last", [50]), ("1", [10]), ("2", [30])])
def test_windows_that_are_chosen(write_trace: WriteTrace, tmp_path: Path, window: str, times: list[int]) -> None:
    windows_of(write_trace, "node_9", 30, 50, 10)
    expected = {0: [f"node_9.{BASE + time}.pt.trace.json" for time in times]}
    assert captures_of(look(tmp_path), window=window) == expected


def test_a_window_that_a_rank_does_not_have(write_trace: WriteTrace, tmp_path: Path) -> None:
    windows_of(write_trace, "node_9", 30)
    with pytest.raises(UsageError, match="Rank 0 has 1 windows"):
        captures_of(look(tmp_path), window="2")


def test_the_same_rank_and_time_twice_is_one_window(write_trace: WriteTrace, tmp_path: Path) -> None:
    windows_of(write_trace, "node_9", 10, 30)
    first = tmp_path / f"node_9.{BASE + 10}.pt.trace.json"
    shutil.copy(first, tmp_path / f"node_9.{BASE + 77}.pt.trace.json")
    found = sniff.ranks([look(tmp_path)])
    assert [one.window for one in found.captures[0]] == [10_000, 30_000]
    (twin,) = found.left_out
    assert twin.root.name == f"node_9.{BASE + 77}.pt.trace.json"
    assert str(first) in twin.fault


@pytest.mark.parametrize(("later", "windows"), [(1_000, 1), (4_000_000, 1), (60_000_000, 2)])
def test_two_processes_of_a_rank_at_one_time_are_a_rank_that_is_there_twice(
    write_trace: WriteTrace, tmp_path: Path, later: int, windows: int
) -> None:
    # (a job that starts again has other processes, too, but later; a program may give each window another name)
    windows_of(write_trace, "node_9", 10, distributedInfo={"rank": 4})
    windows_of(write_trace, "node_12", 10 + later, distributedInfo={"rank": 4})
    found = sniff.ranks([look(tmp_path)])
    assert len(found.captures[4]) == windows
    assert [one.root.name.partition(".")[0] for one in found.left_out] == ["node_12"][: 2 - windows]
    for path in tmp_path.iterdir():
        path.rename(path.with_name(path.name.replace("node_", "worker4_step_8")))
    assert len(sniff.ranks([look(tmp_path)]).captures[4]) == 2


def test_files_of_kineto_named_one_by_one_are_windows_too(write_trace: WriteTrace, tmp_path: Path) -> None:
    windows_of(write_trace, "node_9", 10, 30)
    assert captures_of(*(look(path) for path in sorted(tmp_path.iterdir()))) == captures_of(look(tmp_path))


def test_files_that_say_nothing_are_ranks_in_the_order_given(write_trace: WriteTrace) -> None:
    paths = [write_trace([], name=name) for name in ("c.json", "rank0.json", "b.json")]
    assert captures_of(*map(look, paths)) == {0: ["rank0.json"], 1: ["c.json"], 2: ["b.json"]}


def test_our_own_files_in_a_directory_are_of_one_process(write_trace: WriteTrace, tmp_path: Path) -> None:
    (tmp_path / "journal.ssj").write_bytes(b"SSJ1")
    write_trace([], name="kineto_1.json")
    write_trace([], name="kineto_2.json")
    assert [len(names) for names in captures_of(look(tmp_path)).values()] == [3]


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_there(write_trace: WriteTrace, tmp_path: Path) -> None:
    windows_of(write_trace, "node_9", 10)
    (tmp_path / "node_9.1700000000000000099.pt.trace.json").write_text('{"traceEv')
    (tmp_path / "notes.json").write_text('{"not": "a trace"}')
    found = sniff.ranks([look(tmp_path)])
    assert [len(group) for group in found.captures.values()] == [1]
    assert [(one.format, one.fault.endswith("first event.")) for one in found.left_out] == [("", True)]


def test_each_file_is_opened_once(write_trace: WriteTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows_of(write_trace, "node_9", 10, 20, 30)
    windows_of(write_trace, "node_10", 10)
    opened: list[Path] = []
    real = source.open_trace
    monkeypatch.setattr(source, "open_trace", lambda path: opened.append(path) or real(path))  # type: ignore[func-returns-value]
    look(tmp_path)
    assert sorted(opened) == sorted(tmp_path.iterdir())


# What is nothing of ours


@pytest.mark.parametrize("name", ["", "a/b", "a/b/c"])
def test_an_unknown_directory_gets_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / name / "notes.txt").write_text("hello")
    with pytest.raises(NotATraceError) as error:
        look(tmp_path)
    text = str(error.value)
    assert str(tmp_path) in text
    assert "1 file (1 × .txt)" in text
    for what in ("stepscope run", "pt.trace.json", "xplane.pb", "_ascend_ms", "paddle_trace", ".ssj"):
        assert what in text


@pytest.mark.parametrize("text", ["[]", '[{"name": "a package"}]', '{"a": [1]}', "7", '"text"'])
def test_other_json_in_a_directory_is_no_trace(tmp_path: Path, text: str) -> None:
    (tmp_path / "packages.json").write_text(text)
    with pytest.raises(NotATraceError, match=r"holds no capture; .* 1 file \(1 × \.json\)"):
        look(tmp_path)


def test_a_list_of_events_in_a_directory_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('[{"name": "a", "ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]')
    assert [capture.format for capture in look(tmp_path)] == ["kineto"]


def test_a_directory_of_damaged_files_says_why(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{")
    with pytest.raises(NotATraceError, match=r"rank0\.json is damaged"):
        look(tmp_path)


def test_a_search_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(NotATraceError, match="more than 20 files"):
        look(tmp_path)


def test_a_search_does_not_open_file_after_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sniff, "MOST_STRANGERS", 3)
    for number in range(10):
        (tmp_path / f"{number}.json").write_text("{}")
    opened: list[Path] = []
    real = source.open_trace
    monkeypatch.setattr(source, "open_trace", lambda path: opened.append(path) or real(path))  # type: ignore[func-returns-value]
    with pytest.raises(NotATraceError, match="After 3 files that are not traces, 7 more"):
        look(tmp_path)
    assert len(opened) == 3


def test_several_ranks_are_no_one_rank(write_trace: WriteTrace, tmp_path: Path) -> None:
    write_trace([], name="rank0.json")
    write_trace([], name="rank1.json")
    with pytest.raises(InputError, match="captures of 2 ranks"):
        read_files([tmp_path])


def test_a_recording_that_paddle_wrote_twice_is_read_once(tmp_path: Path) -> None:
    name = "host_vmpid_4711_time_2026_11_24_03_40_00_123456.paddle_trace"
    shutil.copy(PADDLE / "paddle331_static.json.gz", tmp_path / f"{name}.json.gz")
    shutil.copy(PADDLE / "paddle331_static.pb", tmp_path / f"{name}.pb")
    sound, twin = sorted(sniff.look(tmp_path), key=lambda capture: capture.fault)
    assert (sound.format, sound.fault) == ("paddle_json", "")
    assert (twin.format, twin.loss) == ("paddle", "file_duplicate")
    (captures,) = sniff.ranks([[sound, twin]]).captures.values()
    assert captures == [sound]
