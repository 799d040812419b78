"""The simulator against itself, and our reader against its files."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import stepscope
from stepscope.read import read_files, sniff
from tests.simulator.faults import SLOW, Fault, changes_of
from tests.simulator.jobs import Simulated, simulate
from tests.simulator.random_faults import LEVELS, random_job
from tests.simulator.schedules import build
from tests.simulator.shapes import KINDS, Shape, random_shape


@pytest.fixture(scope="module", params=[*sorted(KINDS), "hybrid"])
def job(request: pytest.FixtureRequest) -> Simulated:
    shape = random_shape(3, 8, "fsdp" if request.param == "hybrid" else request.param)
    shape = replace(shape, steps=2, step_ns=2e8, events=1_200, ranks_per_host=4, hybrid=request.param == "hybrid")
    return simulate(shape)


def test_the_same_seed_is_the_same_job(job: Simulated) -> None:
    assert simulate(job.job.shape).truth() == job.truth()


def test_members_of_a_collective_end_within_the_jitter(job: Simulated) -> None:
    ends: dict[tuple[int, int], list[float]] = defaultdict(list)
    for plan, times in zip(job.job.plans, job.times.ends, strict=True):
        for number, op in enumerate(plan.ops):
            for meeting in () if op.batched else op.meetings:
                for group, end in zip(meeting.group.tolist(), times[number].tolist(), strict=True):
                    ends[meeting.exchange, group].append(end)
    assert ends
    spread = [max(together) - min(together) for together in ends.values()]
    assert max(spread) < 6 * job.job.shape.noise.jitter_ns


def test_work_of_one_stream_follows_each_other(job: Simulated) -> None:
    for plan, starts, ends in zip(job.job.plans, job.times.starts, job.times.ends, strict=True):
        lanes = defaultdict(list)
        for number, op in enumerate(plan.ops):
            lanes[op.lane].append(number)
        for numbers in lanes.values():
            assert (starts[numbers[1:]] >= ends[numbers[:-1]]).all()


def test_a_slow_rank_slows_the_job(job: Simulated) -> None:
    slow = simulate(job.job.shape, Fault("clocks", (2,), 0.5))
    assert slow.step_ns > 1.2 * slow.healthy_ns
    assert slow.healthy_ns == job.step_ns


@pytest.mark.parametrize("dialect", ["2.1", "2.4", "2.13"])
def test_every_event_is_read(job: Simulated, dialect: str, tmp_path: Path) -> None:
    whole = simulate(replace(job.job.shape, dialect=dialect, events=600, steps=2))
    whole.write(tmp_path / "job")
    path = tmp_path / "job" / whole.file_of(1)
    events = [event for event in json.loads(path.read_bytes())["traceEvents"] if event["ph"] == "X"]
    frames = read_files(sniff.look_at_each([path]))
    assert len(frames["spans"]) == len(events)
    assert not len(frames["losses"].filter(frames["losses"]["severity"] == "warning"))
    collectives = [event for event in events if event["cat"] == "kernel" and "nccl" in event["name"]]
    if whole.job.shape.device:
        assert len(frames["collectives"]) >= len(collectives) > 0
    assert frames["spans"]["dur"].sum() == pytest.approx(sum(event["dur"] for event in events) * 1_000)


@pytest.mark.parametrize("sort", SLOW)
def test_a_fault_costs_what_the_truth_says(sort: str) -> None:
    kind = "moe" if sort == "network" else "3d" if sort in ("link", "stage") else "ddp"
    shape = replace(random_shape(9, 8, kind), steps=4, step_ns=2e8, events=1_200, device=True, experts=2, pipeline=2)
    shape = replace(shape, tensor=1, microbatches=4) if kind == "3d" else replace(shape, pipeline=1)
    easy, hard = (random_job(shape, level, sort) for level in LEVELS)
    for job, (low, high) in ((easy, LEVELS["easy"]), (hard, LEVELS["hard"])):
        said = job.truth()["fault"]
        assert said["sort"] == sort
        assert 0.7 * low < said["gain_ns"] / job.healthy_ns < 1.3 * high
        assert said["added_ns"] > 0.7 * said["gain_ns"]
        # The same seed without the fault is as fast as the truth says.
        assert simulate(shape).step_ns == pytest.approx(job.step_ns - said["gain_ns"])


def test_a_healthy_job_has_nothing_to_gain() -> None:
    job = random_job(random_shape(5, 8, "ddp"), "healthy")
    assert job.step_ns == pytest.approx(job.healthy_ns, rel=0.15)
    assert not (job.truth()["fault"] or {}).get("causes")


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    return events


def _with(directory: Path, sort: str, **options: Any) -> tuple[Path, int]:
    """Write a job with a fault, and return its directory and the rank that has it."""
    shape = replace(random_shape(4, 8, "ddp"), events=600, steps=4, device=True, dialect="2.4", **options)
    job = random_job(shape, "easy", sort)
    job.write(directory / "job")
    assert job.fault
    return directory / "job", job.fault.ranks[0]


def _file_of(directory: Path, rank: int) -> Path:
    ranks = json.loads((directory / "truth.json").read_bytes())["ranks"]
    return directory / str(ranks[rank]["file"])


def test_a_hung_rank_has_not_called_what_the_others_wait_for(tmp_path: Path) -> None:
    directory, rank = _with(tmp_path, "hung")

    def calls_and_kernels(path: Path) -> tuple[int, int]:
        names = [event["name"] for event in _events(path) if event["ph"] == "X"]
        return names.count("c10d::allreduce_"), sum(name.startswith("ncclDev") for name in names)

    hung = calls_and_kernels(_file_of(directory, rank))
    others = [calls_and_kernels(_file_of(directory, other)) for other in range(8) if other != rank]
    assert hung[0] == hung[1]
    assert all(kernels == hung[1] < calls for calls, kernels in others)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    directory, rank = _with(tmp_path / "missing", "missing")
    assert not _file_of(directory, rank).exists()
    assert len(list(directory.iterdir())) == 8
    directory, rank = _with(tmp_path / "duplicate", "duplicate")
    assert len(list(directory.iterdir())) == 10
    directory, rank = _with(tmp_path / "world", "world")
    sizes = {r: json.loads(_file_of(directory, r).read_bytes())["distributedInfo"]["world_size"] for r in range(8)}
    assert [r for r, size in sizes.items() if size != 8] == [rank]
    directory, rank = _with(tmp_path / "steps", "steps")
    steps = [sum("ProfilerStep" in event["name"] for event in _events(_file_of(directory, r))) for r in range(8)]
    assert steps[rank] < 4
    assert {*steps} == {4, steps[rank]}
    directory, rank = _with(tmp_path / "cut", "cut")
    with pytest.raises(json.JSONDecodeError):
        _events(_file_of(directory, rank))
    directory, rank = _with(tmp_path / "alone", "alone", ranks_per_host=1)
    nccl = [sum("nccl" in event["name"] for event in _events(_file_of(directory, r))) for r in range(8)]
    assert [r for r, count in enumerate(nccl) if not count] == [rank]
    directory, rank = _with(tmp_path / "code", "code")
    kernels = [
        sorted(event["name"] for event in _events(_file_of(directory, r)) if event.get("cat") == "kernel")
        for r in range(8)
    ]
    assert [r for r in range(8) if kernels[r] != kernels[rank - 1]] == [rank]


def test_a_clock_that_is_set_jumps_once(tmp_path: Path) -> None:
    directory, rank = _with(tmp_path, "jump", ranks_per_host=1, offset_ns=0.0, drift_ppm=0.0)
    truth = json.loads((directory / "truth.json").read_bytes())
    kernels = [
        np.array([event["ts"] for event in _events(_file_of(directory, r)) if str(event["name"]).startswith("ncclDev")])
        for r in (rank, (rank + 1) % 8)
    ]
    apart = (kernels[0] - kernels[1]) * 1_000
    assert abs(truth["ranks"][rank]["jump_ns"]) > 300_000
    early, late = apart[0], apart[-1]
    # What ranks arrive apart stays: it is much less than the jump.
    assert late - early == pytest.approx(truth["ranks"][rank]["jump_ns"], rel=0.5)


def test_batched_messages_are_named_by_the_host_only(tmp_path: Path) -> None:
    shape = replace(random_shape(7, 8, "3d"), steps=2, events=900, dialect="2.4", tensor=1, pipeline=4, microbatches=8)
    alone, batched = simulate(replace(shape, batched=False)), simulate(replace(shape, batched=True))
    assert batched.step_ns == pytest.approx(alone.step_ns, rel=0.1)
    batched.write(tmp_path / "job")
    path = tmp_path / "job" / batched.file_of(3)
    kernels = [event["args"] for event in _events(path) if "SendRecv" in event["name"]]
    calls = [event["args"] for event in _events(path) if event["name"] == "record_param_comms"]
    assert kernels
    assert not any("Collective name" in said for said in kernels)
    assert {"Src Rank", "Dst Rank"} <= {key for said in calls for key in said}
    assert len(read_files(sniff.look_at_each([path]))["losses"]) == 0


def test_every_rank_of_a_group_says_the_same_group(tmp_path: Path) -> None:
    shape = replace(random_shape(7, 8, "3d"), steps=2, events=900, dialect="2.13", tensor=2, pipeline=2)
    shape = replace(shape, microbatches=4, batched=False)
    simulate(shape).write(tmp_path / "job")
    members = defaultdict(set)
    for rank in range(8):
        for event in _events(_file_of(tmp_path / "job", rank)):
            if event.get("cat") == "kernel" and "Process Group Ranks" in event["args"]:
                said = event["args"]
                members[said["Process Group Name"], said["Process Group Ranks"], said["Group size"]].add(rank)
                if said["Collective name"] in ("send", "recv"):
                    assert rank == said["Src Rank" if said["Collective name"] == "send" else "Dst Rank"]
    assert len(members) == 1 + 4 + 4 + 4
    for (_, ranks, size), seen in members.items():
        assert sorted(seen) == json.loads(ranks)
        assert len(seen) == size


def test_a_slow_link_is_named_where_messages_are_batched(tmp_path: Path) -> None:
    shape = replace(random_shape(7, 8, "3d"), steps=3, events=900, dialect="2.4", tensor=2, pipeline=2, batched=True)
    random_job(replace(shape, microbatches=4), "easy", "link").write(tmp_path / "job")
    truth = json.loads((tmp_path / "job" / "truth.json").read_bytes())
    found = stepscope.job(tmp_path / "job")
    ranks = sorted(truth["fault"]["link"])
    assert found.links.filter("slow")["ranks"].to_list() == [ranks]
    assert found.what_if is not None
    time = found.results["cluster_collectives"]
    assert not time.filter(pl.col("operation") == "coalesced").height


def test_one_hiccup_stops_one_step_only() -> None:
    """A hiccup is one pause of one rank; garbage collection comes again."""
    job = build(Shape(seed=32, steps=8))
    for sort, steps in (("hiccup", {4}), ("garbage", {4, 6})):
        changes = changes_of(job, Fault(sort, (1,), first_step=4, every=2))
        assert {job.plans[plan].ops[number].place.step for plan, number in changes.durations} == steps
