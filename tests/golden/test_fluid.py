"""fluid.profiler's report, file and timeline, against the original: what paddlepaddle 1.8.5 printed and wrote.

A report's numbers are of a clock with nanoseconds, its file's of one with microseconds. So the text is tested twice.
Events made from the numbers that the original printed must give its report again, to the letter. Events from its file
must give the same rows, calls, columns and widths, and times and order within the file's resolution.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.cli.main import main
from stepscope.compat.fluid import profile_file
from stepscope.compat.fluid.report import ORDERS, PLACES, FluidReportOptions, render, render_memory
from stepscope.errors import OutputError
from stepscope.read.paddle import fluid_profile
from stepscope.read.paddle.fluid_profile import Profile
from stepscope.report.timeline import fluid_timeline
from stepscope.trace.losses import LossLedger
from tests import paddle_schemas

from .test_perfetto import LOST
from .trace_processor import ask

DATA = Path(__file__).resolve().parents[1] / "data" / "paddle" / "fluid185"
REPORTS = sorted(path.stem for path in DATA.glob("*.txt"))
DETAIL = {"cpu_opdetail": "OpDetail", "gpu_opdetail": "OpDetail", "threads_opdetail": "OpDetail"}
DETAIL |= {"all_allopdetail": "AllOpDetail", "cpu_allopdetail": "AllOpDetail"}
MEMORY = "\n------------------------->    Memory Profiling Report"

#: Indent, name, calls, total, (times,) minimum, maximum, average, ratio.
ROW = re.compile(
    r"^(?P<indent> *)(?P<name>\S+) +(?P<calls>\d+) +(?P<total>\S+) +"
    r"(?:(?P<cpu>[\d.]+) \(\S+\) +(?P<gpu>[\d.]+) \(\S+\) +)?(?P<least>\S+) +(?P<most>\S+) +\S+ +\S+ *$"
)


def load(path: Path) -> Profile:
    ledger = LossLedger(path.name)
    profile = fluid_profile.load(path, ledger)
    assert ledger.rows() == []
    return profile


def printed(name: str) -> str:
    return (DATA / f"{name}.txt").read_text().split(MEMORY)[0]


def options_of(name: str, text: str) -> FluidReportOptions:
    place, order = (re.search(pattern, text) for pattern in ("Place: (.*)", "Sorted by (.*) in descending"))
    assert place is not None and order is not None
    state = next(state for state, shown in PLACES.items() if shown == place[1])
    key = next(key for key, shown in ORDERS.items() if shown == order[1])
    return FluidReportOptions(state, key, DETAIL.get(name, "Default"))


@dataclass
class Row:
    """A row of a report: where it stands, and its numbers in ns."""

    path: tuple[str, ...]
    calls: int
    total: float
    least: float
    most: float


def rows_of(report: str) -> list[Row]:
    """Return the rows of one report's table, with the names that their events have."""
    found: list[Row] = []
    above: list[str] = []
    for line in report.splitlines():
        match = ROW.match(line)
        if match is None:
            continue
        depth = len(match["indent"]) // 2
        above = [*above[:depth], match["name"]]
        numbers = [1e6 * float(match[name]) for name in ("total", "least", "most")]
        if match["cpu"]:
            numbers[0] = 1e6 * (float(match["cpu"]) + float(match["gpu"]))
        found.append(Row(tuple(above), int(match["calls"]), *numbers))
    return found


def sections(text: str) -> list[str]:
    return [part for part in re.split(r"(?=\n-{25}>     Profiling Report)", text) if part]


def full_name(path: tuple[str, ...]) -> tuple[str, int]:
    """Return the name of the events of a row, without the thread, and the thread."""
    thread = re.match(r"thread(\d+)::", path[0])
    names = [name.partition("::")[2] if name.startswith("thread") else name for name in path]
    whole = names[0]
    for name in names[1:]:
        # A part of an operator is shown with its whole name, an instance's with its instance's.
        whole = name if name.startswith(f"{whole}/") else f"{whole}/{name.rpartition('/')[2]}"
    return whole, int(thread[1]) if thread else 0


def events_of(report: str, overhead: str, options: FluidReportOptions) -> pl.DataFrame:
    """Return events that have the numbers of a report: one as short, one as long as said, the others share the rest.

    Args:
        report: The report with the rows.
        overhead: The report that says how much of the time operators compute.
        options: How both were made.
    """
    events: list[tuple[str, int, int, int, int]] = []
    for row in rows_of(report):
        name, thread = full_name(row.path)
        total, least, most = (round(value) for value in (row.total, row.least, row.most))
        lengths = [total] if row.calls == 1 else [least, most] + [0] * (row.calls - 2)
        rest = total - sum(lengths)
        if row.calls == 1:
            lengths = [total]
        for place in range(2, row.calls):
            lengths[place] = rest // (row.calls - 2) + (place - 2 < rest % (row.calls - 2))
        events += [(name, thread, 0, length, 0) for length in lengths]
    if options.tracer_option == "Default":
        events += hidden(report, overhead)
    schema = {"name": pl.String, "thread": pl.Int64, "ts": pl.Int64, "end": pl.Int64, "gpu": pl.Int64}
    frame = pl.DataFrame(events, schema=schema, orient="row")
    if options.state == "GPU":
        frame = frame.with_columns(gpu="end", end=pl.lit(0))
    # The original's instances are told apart by their outputs; here the number stands already.
    instance = pl.col("name").str.contains(r"/\w+\d$")
    inner = pl.col("name").str.contains("/", literal=True)
    role = pl.when(instance).then(pl.lit("instance")).when(inner).then(pl.lit("inner")).otherwise(pl.lit("ordinary"))
    return frame.with_columns(role=role)


def hidden(report: str, overhead: str) -> list[tuple[str, int, int, int, int]]:
    """Return the computing parts of operators, which a report without detail only sums up."""
    match = re.search(r"Computation time +Total: (\S+)", overhead)
    rows = rows_of(report)
    if match is None or not rows:
        return []
    name, thread = full_name(rows[0].path)
    time = 0.0 if match[1] == "-nan" else float(match[1])
    return [(f"{name}/compute", thread, 0, round(1e6 * time), 0)]


def agree(ours: str, original: str) -> None:
    """Check that two texts are the same to the letter, but for the last of the six digits of a few numbers.

    The original added times of ns; its report says six digits of the sums (those of the CPU under ``All`` to the ns),
    from which the last digit of others does not always come out again.
    """
    differing, most = 0, 12 if "Place: CPU" in original else 4
    for one, other in zip(ours.splitlines(), original.splitlines(), strict=True):
        for left, right in zip(fields_of(one), fields_of(other), strict=True):
            if left != right:
                differing += 1
                assert left[0] == right[0], (one, other)
                assert number(left[1]) == pytest.approx(number(right[1]), rel=5e-5), (one, other)
    assert differing <= most
    assert ours.endswith("\n") == original.endswith("\n")


def fields_of(line: str) -> list[tuple[int, str]]:
    """Return the texts of a line and the columns that they begin in, which behind a label depend on its length."""
    moving = "Ratio:" in line
    return [(0 if moving else match.start(), match[0]) for match in re.finditer(r"\S+", line)]


def number(text: str) -> float:
    return float(text.strip("()%"))


@pytest.mark.parametrize("name", [name for name in REPORTS if not name.startswith("threads")])
def test_the_numbers_of_a_report_give_it_again(name: str) -> None:
    text = printed(name)
    options = options_of(name, text)
    rendered = render(events_of(text, text, options), options)
    agree(rendered, text)
    assert rendered == text or options.state != "GPU"


def test_the_report_of_a_hundred_steps(shared_data: Path) -> None:
    text = (shared_data / "paddle" / "fluid185" / "expected_reports.txt").read_text()
    options = options_of("train100", text)
    agree(render(events_of(text, text, options), options), text)


@pytest.mark.parametrize("name", ["threads_total", "threads_opdetail"])
def test_several_threads_are_reported_together_and_then_apart(name: str) -> None:
    text = printed(name)
    merged, apart = sections(text)
    options = options_of(name, apart)
    agree(render(events_of(apart, merged, options), options), text)


@pytest.mark.parametrize("name", REPORTS)
def test_every_number_is_written_as_the_original_writes_it(name: str) -> None:
    found = re.findall(r"(?<![\w.(])\d+\.\d+(?:e[-+]\d+)?(?![\w.)])(?! \()", printed(name))
    assert all(f"{float(text):g}" == text for text in found)
    assert len(found) > 3 or name in ("empty", "gpu_total", "gpu_opdetail")


def test_the_memory_report_to_the_letter() -> None:
    expected = MEMORY + (DATA / "memory.txt").read_text().split(MEMORY)[1]
    memory = load(DATA / "memory.pb").memory
    place = pl.when(pl.col("place") == "cuda").then(pl.format("cuda:{}", "device")).otherwise("place")
    taken = memory.select("ts", "bytes", place=place, inside="alloc_in")
    freed = memory.select(-pl.col("bytes"), ts="end", place=place, inside="free_in").select(taken.columns)
    assert render_memory(pl.concat([taken, freed]).sort("ts", maintain_order=True)) == expected


@pytest.mark.parametrize("name", REPORTS)
def test_a_file_gives_its_report_within_its_resolution(name: str) -> None:
    within_resolution(load(DATA / f"{name}.pb"), printed(name), options_of(name, printed(name)))


def test_the_file_of_a_hundred_steps_gives_its_report(shared_data: Path) -> None:
    folder = shared_data / "paddle" / "fluid185"
    text = (folder / "expected_reports.txt").read_text()
    pairs = within_resolution(load(folder / "train100.pb"), text, options_of("train100", text))
    assert len(pairs) == 20
    for ours, original in pairs:
        assert abs(ours.total - original.total) <= 1000 * original.calls
        assert abs(ours.least - original.least) <= 1000
        assert abs(ours.most - original.most) <= 1000


def within_resolution(profile: Profile, text: str, options: FluidReportOptions) -> list[tuple[Row, Row]]:
    """Check the report of a file against the original's, and return their rows in pairs."""
    rendered = render(profile_file.reported(profile), options)
    pairs = []
    for ours, original in zip(sections(rendered), sections(text), strict=True):
        heads = [re.sub(r"[\d.]+|-nan", "#", part.split("Event Summary")[0]) for part in (ours, original)]
        assert re.sub("# +", "# ", heads[0]) == re.sub("# +", "# ", heads[1])
        tables = [part.split("Event Summary")[1].splitlines()[2:] for part in (ours, original)]
        assert tables[0][:1] == tables[1][:1], "the heads of the columns"
        by_name = {row.path: row for row in rows_of(ours)}
        expected = {row.path: row for row in rows_of(original)}
        assert {path: row.calls for path, row in by_name.items()} == {path: row.calls for path, row in expected.items()}
        columns = [{tuple(place for place, _ in fields_of(line)[1:]) for line in table[1:] if line} for table in tables]
        assert columns[0] == columns[1]
        in_order(list(by_name), expected, options)
        pairs += [(by_name[path], row) for path, row in expected.items()]
    return pairs


def in_order(paths: list[tuple[str, ...]], expected: dict[tuple[str, ...], Row], options: FluidReportOptions) -> None:
    """Check that rows come in the original's order, but for those whose values its file's µs cannot tell apart."""
    values = {
        "default": lambda row: -list(expected).index(row.path),
        "calls": lambda row: row.calls,
        "total": lambda row: row.total,
        "max": lambda row: row.most,
        "min": lambda row: row.least,
        "ave": lambda row: row.total / row.calls,
    }
    value = values[options.order]
    for one, other in pairwise(paths):
        if one[:-1] == other[:-1] and one[0].partition("::")[0] == other[0].partition("::")[0]:
            # A thread's first event also waited for Paddle to make its list, before it took its own time.
            resolution = {"total": 60_000.0, "max": 60_000.0, "min": 2000.0, "ave": 20_000.0}.get(options.order, 0)
            assert value(expected[one]) >= value(expected[other]) - resolution, (one, other)


@pytest.mark.parametrize("name", REPORTS)
def test_a_file_of_ours_is_read_by_the_original_s_schema(name: str, tmp_path: Path) -> None:
    original = paddle_schemas.profile().FromString((DATA / f"{name}.pb").read_bytes())
    path = tmp_path / "profile"
    profile_file.write(load(DATA / f"{name}.pb"), path)
    ours = paddle_schemas.profile().FromString(path.read_bytes())
    assert list(ours.events) == list(original.events)
    assert list(ours.mem_events) == list(original.mem_events)
    assert ours.start_ns == min((event.start_ns for event in [*ours.events, *ours.mem_events]), default=0)
    assert ours.end_ns == max((event.end_ns for event in [*ours.events, *ours.mem_events]), default=0)
    assert path.stat().st_mode & 0o777 == 0o600


def a_gpu_profile() -> Profile:
    """Return two runs of an operator, one of them in another thread, with a call of CUDA, a kernel and a copy."""
    start, us = 1_700_000_000_000_000_001, 1000
    events = [
        ("conv2d", 0, 20, 2, 0, False, None, ""),
        ("conv2d/compute", 2, 15, 2, 0, False, None, ""),
        ("cudaLaunchKernel", 5, 3, -1, 0, False, None, ""),
        ("conv2d/compute", 30, 40, 0, 7, True, None, "implicit_gemm<float>"),
        ("MEMCPY_HtoD", 60, 20, 0, 7, True, 1 << 33, ""),
        ("conv2d", 100, 20, 2, 1, False, None, 'with "quotes" and é'),
    ]
    memory = [
        (start, start + 9 * us, 64, "cuda", 0, 1, "conv2d", "Unknown"),
        (start + us, start + 9 * us, 36, "cuda", 0, 1, "conv2d", "Unknown"),
        (start + us, start + 5 * us, 5, "cuda_pinned", 1, 0, "conv2d", "conv2d"),
    ]
    schema = {"name": pl.String, "ts": pl.Int64, "end": pl.Int64, "device": pl.Int64, "sub": pl.Int64}
    rows = [(name, start + at * us, start + (at + dur) * us, *further) for name, at, dur, *further in events]
    return Profile(
        pl.DataFrame(
            rows, schema={**schema, "on_gpu": pl.Boolean, "bytes": pl.Int64, "detail": pl.String}, orient="row"
        ).reverse(),
        pl.DataFrame(memory, schema=load(DATA / "all_total.pb").memory.schema, orient="row"),
    )


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    profile = a_gpu_profile()
    profile_file.write(profile, tmp_path / "profile")
    again = load(tmp_path / "profile")
    assert again.events.equals(profile.events)
    assert again.memory.equals(profile.memory)
    theirs = paddle_schemas.profile().FromString((tmp_path / "profile").read_bytes())
    assert [event.device_id for event in theirs.events if event.name == "cudaLaunchKernel"] == [-1]
    assert [event.memcopy.bytes for event in theirs.events if event.HasField("memcopy")] == [1 << 33]


def test_device_time_belongs_to_the_events_that_launched_it() -> None:
    events = profile_file.reported(a_gpu_profile())
    assert sorted(events.select("name", "thread", "gpu").rows()) == [
        ("conv2d", 0, 40_000),
        ("conv2d", 1, 0),
        ("conv2d/compute", 0, 40_000),
    ]
    merged, apart = sections(render(events, FluidReportOptions("GPU", "total")))
    assert [(row.path, row.calls, row.total) for row in rows_of(merged)] == [(("conv2d",), 2, 40_000)]
    assert [(row.path, row.total) for row in rows_of(apart)] == [
        (("thread1::conv2d",), 0),
        (("thread0::conv2d",), 40_000),
    ]


def test_copies_are_shown_without_detail_too() -> None:
    def event(name: str, end: int) -> dict[str, Any]:
        return {"name": name, "thread": 0, "ts": 0, "end": end, "gpu": 0}

    copies = ["GpuMemcpyAsync:CPU->GPU", "GpuMemcpySync:GPU->CPU"]
    names = [f"load/compute/{copies[0]}", "load/compute", f"save/{copies[1]}", "save", "load", "user/range", "user"]
    text = render(
        pl.DataFrame([event(name, (3 + place) * 100_000) for place, name in enumerate(names)]),
        FluidReportOptions("CPU"),
    )
    overhead, table = text.split("Event Summary")
    assert "GpuMemcpy                Calls: 2           Total: 0.8         Ratio: 36.3636%\n" in overhead
    assert "  GpuMemcpyAsync         Calls: 1           Total: 0.3         Ratio: 13.6364%\n" in overhead
    # Below its operator, whatever part of that made it.
    assert [line.split("  ")[:2] for line in table.splitlines()[3:]] == [
        ["thread0::save", ""],
        ["", copies[1]],
        ["thread0::load", ""],
        ["", copies[0]],
        ["thread0::user", ""],
    ]


def test_ranges_within_ranges_are_shown_without_detail_too() -> None:
    names = {f"epoch/step/mul{part}": role for part, role in (("/compute", "inner"), ("", "ordinary"))}
    names |= {"epoch/step": "ordinary", "epoch": "ordinary"}
    rows = [(name, 0, 0, 1000, 0, role) for name, role in names.items()]
    events = pl.DataFrame(rows, schema=["name", "thread", "ts", "end", "gpu", "role"], orient="row")
    table = render(events, FluidReportOptions("CPU")).split("Event Summary")[1]
    assert [line[:17].rstrip() for line in table.splitlines()[3:]] == [
        "thread0::epoch",
        "  step",
        "    mul",
    ]


@pytest.mark.parametrize("name", ["all_total", "threads_total", "all_allopdetail"])
def test_perfetto_reads_the_timeline(name: str, tmp_path: Path) -> None:
    profile = load(DATA / f"{name}.pb")
    path = tmp_path / "timeline.json"
    fluid_timeline.write({"trainer1": profile, "trainer2": a_gpu_profile()}, path)
    check_timeline({"trainer1": profile, "trainer2": a_gpu_profile()}, path)


def test_the_timeline_of_a_training(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_data / "paddle" / "fluid185"
    path = tmp_path / "t.json"
    pair = f"trainer1={folder / 'train100.pb'},trainer2={folder / 'threads.pb'}"
    assert main(["timeline", "--profile-path", pair, "--out", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    check_timeline({"trainer1": load(folder / "train100.pb"), "trainer2": load(folder / "threads.pb")}, path)


def check_timeline(profiles: dict[str, Profile], path: Path) -> None:
    """Check that Perfetto finds every event, to the ns and where it belongs, and the memory; and no error."""
    document = json.loads(path.read_text())
    assert all(event.get("tid") != 0 and event["pid"] != 0 for event in document["traceEvents"])
    base = document["baseTimeNanoseconds"]
    where = (
        "select process.name, thread.name, slice.ts, slice.dur, slice.name from slice "
        "join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)"
    )
    memory = (
        "select process.name, ts, value from counter join process_counter_track on track_id = process_counter_track.id "
        "join process using (upid)"
    )
    lost, slices, samples = ask(path, [LOST, where, memory])
    assert lost == []
    expected: Counter[Any] = Counter()
    for label, profile in profiles.items():
        for event in profile.events.iter_rows(named=True):
            row, lane = f"cpu:block:{event['device']}", f"thread {event['sub']}"
            if event["on_gpu"]:
                row, lane = f"gpu:{event['device']}", f"stream {event['sub']}"
            elif event["device"] < 0:
                row = "cuda_api"
            expected[(f"{label}:{row}", lane, event["ts"] - base, event["end"] - event["ts"], event["name"])] += 1
    # What crosses another event of its thread has a lane of its own, numbered behind the name.
    assert Counter((row, re.sub(r" \(\d+\)$", "", lane), *rest) for row, lane, *rest in slices) == expected
    assert Counter(samples) == Counter(in_use(profiles, base))


def in_use(profiles: dict[str, Profile], base: int) -> list[tuple[str, int, float]]:
    """Return what is in use in each place after each change."""
    shown = {"cpu": "cpu", "cuda": "gpu", "cuda_pinned": "cudapinnedplace"}
    samples = []
    for label, profile in profiles.items():
        changes: dict[str, Counter[int]] = {}
        for piece in profile.memory.iter_rows(named=True):
            place = f"memory usage on {label}:{shown[piece['place']]}:{piece['device']}"
            changes.setdefault(place, Counter())[piece["ts"] - base] += piece["bytes"]
            changes[place][piece["end"] - base] -= piece["bytes"]
        for place, by_time in changes.items():
            total = 0
            for ts, change in sorted(by_time.items()):
                total += change
                samples.append((place, ts, float(total)))
    return samples


def test_a_timeline_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot write"):
        fluid_timeline.write({"a": a_gpu_profile()}, tmp_path / "file" / "t.json")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("a=x,b", "is not a label=file pair"),
        ("a=1,a=2", "given twice"),
        ("a=,b=2", "is not a label=file pair"),
        ("/absent", "cannot be read"),
    ],
)
def test_wrong_files_are_one_line(files: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--profile-path", files]) in (2, 4)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
