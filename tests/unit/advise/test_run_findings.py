"""The findings of a job: a slow rank is told by why it is slow, and what the ranks share is told once."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import stepscope
from stepscope.advise.finding import Evidence, Finding
from stepscope.advise.run_findings import (
    made_slow_by,
    of_its_rank,
    reason_of,
    with_reason,
    without_bubbles,
    without_waits,
)
from stepscope.cli.main import main


def finding(cause: str, rank: int, gain: int, added: int | None = None) -> Finding:
    said = (Evidence(text=cause),)
    return Finding(cause=cause, title=cause, evidence=said, remedy="", gain_ns=gain, ranks=(rank,), added_ns=added)


def test_a_checkpoint_of_one_rank_is_why_it_is_slow() -> None:
    slow, saves = finding("host-bound-rank", 0, 12, added=13), finding("frequent-checkpoint", 0, 11)
    assert made_slow_by(slow, [saves]) is saves
    assert made_slow_by(slow, [finding("frequent-checkpoint", 1, 11)]) is None
    assert made_slow_by(slow, [finding("frequent-checkpoint", 0, 5)]) is None
    assert made_slow_by(finding("small-collectives", 0, 12), [saves]) is None


def test_what_one_rank_does_says_which() -> None:
    saves = finding("frequent-checkpoint", 0, 11)
    assert of_its_rank(saves).title == "Rank 0: frequent-checkpoint"
    of_all = Finding(cause="sync", title="sync", evidence=(), remedy="", ranks=())
    assert of_its_rank(of_all) is of_all


def test_a_rank_that_waits_for_its_data_says_what_its_own_samples_show() -> None:
    slow, own = finding("data-wait-rank", 1, 10, added=12), finding("data-loader-slow", 1, 9)
    elsewhere, small, other = (finding("data-loader-slow", 0, 9), finding("data-loader-slow", 1, 5),
                               finding("python-in-step", 1, 9))  # fmt: skip
    assert reason_of(slow, [elsewhere, small, other]) is None
    assert with_reason(slow, None) is slow
    told = with_reason(slow, reason_of(slow, [elsewhere, own]))
    assert [one.text for one in told.evidence] == ["data-wait-rank", "data-loader-slow", "data-loader-slow"]
    assert (told.cause, told.gain_ns, told.evidence[1].rank) == ("data-wait-rank", 10, 1)
    assert reason_of(finding("host-bound-rank", 1, 10, added=12), [other]) is other


def test_a_rank_that_computes_longer_is_slow_by_what_no_other_rank_does() -> None:
    slow, own = finding("slow-rank", 1, 10, added=12), finding("inputs-in-step", 1, 9)
    assert reason_of(slow, [finding("buffer-broadcasts", 1, 9), own]) is own
    assert reason_of(slow, [own, finding("inputs-in-step", 0, 8)]) is None


@pytest.mark.parametrize("cause", ["communication-not-overlapped", "buffer-broadcasts", "unneeded-collectives"])
def test_communication_that_is_the_wait_for_a_slow_rank_is_told_once(cause: str) -> None:
    slow = finding("slow-rank", 3, 25, added=26)
    assert without_waits(finding(cause, 0, 36), slow) is None
    left = without_waits(finding("communication-not-overlapped", 0, 60), slow)
    assert left is not None
    assert (left.gain_ns, left.evidence[-1].value) == (35, 25)
    of_data = finding("data-loader-slow", 0, 36)
    assert without_waits(of_data, slow) is of_data
    unknown = finding("slow-rank", 3, 0)
    assert without_waits(left, unknown) is left


def test_communication_saves_what_data_move_and_not_what_ranks_wait() -> None:
    shared = msgspec.structs.replace(
        finding("exposed-communication", 0, 26), gain_low_ns=12, gain_high_ns=40, step_ns=100
    )
    assert without_bubbles(shared, None) is shared
    assert without_bubbles(shared, 50.0) is shared
    assert without_bubbles(shared, 5.0) is None
    left = without_bubbles(shared, 10.0)
    assert left is not None
    assert (left.gain_low_ns, left.gain_ns, left.gain_high_ns) == (3, 6, 10)
    assert left.evidence[-1].text == "data move for 10.0 ns a step; the rest of it the ranks wait for each other"
    of_data = finding("data-loader-slow", 0, 36)
    assert without_bubbles(of_data, 1.0) is of_data


def waiting_ranks(directory: Path, ranks: int, *, waits: set[int]) -> Path:
    """Kineto files of ranks that take five steps of 100 ms; some wait 60 ms in each for their data."""
    directory.mkdir()
    for rank in range(ranks):
        wait = 60_000 if rank in waits else 0
        parts = [
            ("user_annotation", "ProfilerStep#{}", 0, 100_000),
            ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, wait),
            ("cpu_op", "aten::mm", wait, 90_000 - wait),
            ("cpu_op", "gloo:all_reduce", 90_000, 10_000),
        ]
        events = [
            {
                "ph": "X",
                "pid": 7,
                "tid": 7,
                "cat": category,
                "name": name.format(step),
                "ts": step * 100_000 + ts,
                "dur": dur,
            }
            for step in range(5)
            for category, name, ts, dur in parts
            if dur
        ]
        info = {"backend": "gloo", "rank": rank, "world_size": ranks}
        trace = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}
        (directory / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))
    return directory


@pytest.mark.parametrize("ranks", [4, 16])
def test_what_all_ranks_share_is_told_at_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    [finding] = stepscope.findings(waiting_ranks(tmp_path / "job", ranks, waits={*range(ranks)}))
    assert (finding.cause, finding.ranks) == ("data-loader-slow", ())
    assert finding.gain_ns == pytest.approx(60e6, rel=0.1)
    assert any("seen on rank 0, 7, 15 of the 3 usual ones" in one.text for one in finding.evidence) == (ranks == 16)


def device_ranks(directory: Path, computing: list[int]) -> Path:
    """Kineto files of ranks whose devices compute so many ms in each of five steps of 180 ms, then sum up."""
    directory.mkdir()
    for rank, busy in enumerate(computing):
        events = []
        for step in range(5):
            begin, id = step * 180_000, 2 * step + 1
            parts = [
                ("user_annotation", f"ProfilerStep#{step}", 7, begin, 180_000, 0),
                ("cuda_runtime", "cudaLaunchKernel", 7, begin + 10, 5, id),
                ("cuda_runtime", "cudaLaunchKernel", 7, begin + 20, 5, id + 1),
                ("kernel", "ampere_sgemm_128x64_nn", 70, begin + 100, busy * 1000, id),
                ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 71, begin + busy * 1000 + 200,
                 179_000 - busy * 1000, id + 1),
            ]  # fmt: skip
            for category, name, thread, ts, dur, correlation in parts:
                args = {"correlation": correlation, "device": 0, "stream": thread} if correlation else {}
                events.append({"ph": "X", "pid": 0 if category == "kernel" else 7, "tid": thread, "cat": category,
                               "name": name, "ts": ts, "dur": dur, "args": args})  # fmt: skip
        info = {"backend": "nccl", "rank": rank, "world_size": len(computing)}
        trace = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}
        (directory / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))
    return directory


def test_what_ranks_wait_for_a_slow_one_is_not_told_as_communication(tmp_path: Path) -> None:
    [told] = stepscope.findings(device_ranks(tmp_path / "slow", [90, 90, 90, 170]))
    assert (told.cause, told.ranks) == ("slow-rank", (3,))
    assert told.gain_ns == pytest.approx(80e6, rel=0.1)
    [told] = stepscope.findings(device_ranks(tmp_path / "alike", [90, 90, 90, 90]))
    assert (told.cause, told.ranks) == ("exposed-communication", ())


def test_what_one_usual_rank_of_many_has_is_not_told_of_all(tmp_path: Path) -> None:
    shared = [one for one in stepscope.findings(waiting_ranks(tmp_path / "job", 16, waits={7})) if 7 not in one.ranks]
    assert shared == []


def test_of_ranks_that_were_reduced_nothing_but_the_summaries_is_read(tmp_path: Path) -> None:
    captures, reduced = waiting_ranks(tmp_path / "job", 4, waits={*range(4)}), tmp_path / "reduced"
    assert main(["reduce", str(captures), "--output", str(reduced)]) == 0
    at_hand = stepscope.findings(reduced)
    captures.rename(tmp_path / "elsewhere")
    assert stepscope.findings(reduced) == at_hand
