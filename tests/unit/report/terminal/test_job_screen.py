"""The screen of a job: one at any number of ranks, misfits first, and nothing that is not known."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from msgspec import structs
from rich.cells import cell_len
from rich.console import Console

from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.job_findings import job_verdict
from stepscope.analyse.quantities import duration_text
from stepscope.analyse.step.summary import StepPart
from stepscope.cluster.job_summary import (
    JobClocks,
    JobCommunication,
    JobPipeline,
    JobSummary,
    LossOverRanks,
    OperatorOverRanks,
    PartOverRanks,
    RankNumbers,
    UnlikeSteps,
)
from stepscope.report.terminal.job_screen import LINES, JobPage, rank_list, render_job

MS = 1_000_000
SHARES = {"computing": 0.5, "communication": 0.25, "copy": 0.05, "data wait": 0.1, "host only": 0.06, "idle": 0.04}
NAMED = ["file_cut", "event_bad_time", "file_corrupt", "names_shortened"]


def ranks(count: int, *, slow: int | None = None) -> tuple[RankNumbers, ...]:
    return tuple(
        RankNumbers(
            rank=rank,
            host=f"node{rank // 8:03}",
            steps=5,
            step_ns=100.0 * MS + rank,
            own_ns=(90 if rank == slow else 60.0 + rank % 7 / 10) * MS,
            wait_ns=0.0 if rank == slow else (30.0 - rank % 7 / 10) * MS,
            times_last=50 if rank == slow else 0,
            meetings=50,
            speed=0.67 if rank == slow else 1.0,
        )
        for rank in range(count)
    )


def summary(count: int = 64, *, slow: int | None = None) -> JobSummary:
    parts = [
        PartOverRanks(
            StepPart(name, round(500 * MS * share), 100 * MS * share, share), 90 * MS * share, 110 * MS * share
        )
        for name, share in SHARES.items()
    ]
    return JobSummary(
        frameworks=(("torch", "2.13.0"),),
        devices=(("cuda", count),),
        hosts=max(count // 8, 1),
        world_size=count,
        ranks=ranks(count, slow=slow),
        steps=5,
        step_ns=100.0 * MS,
        unlike=(),
        split=tuple(parts),
        not_recorded=(),
        split_ranks=count,
        phases=tuple(parts[:3]),
        communication=JobCommunication(25.0 * MS, 10.0 * MS, 21.0 * MS, 9.0 * MS, 12.0),
        pipeline=None,
        on_device=True,
        operators=tuple(
            OperatorOverRanks(f"gemm_{number}", 4.0, 9.0 * MS, 8.0 * MS, 11.0 * MS, 3, 0.2) for number in range(5)
        ),
        clocks=JobClocks(count, 12_000.0, ()),
        losses=(),
        checked=0,
        imported=0,
        unreadable=(),
    )


SLOW = Finding(
    cause="slow-rank",
    title="Rank 3 keeps the other 63 waiting 30.0 of 100 ms a step: its gemm_1 takes 2 × as long.",
    gain_ns=29 * MS,
    gain_low_ns=28 * MS,
    gain_high_ns=30 * MS,
    confidence=Confidence.MEASURED,
    evidence=(
        Evidence(text="it is the last in 50 of 50 collectives"),
        Evidence(text="gemm_1 takes 18 ms, its peers 9"),
    ),
    remedy="Look at the clocks of this device.",
    ranks=(3,),
)
MISSING = Finding(
    cause="missing-rank",
    title="1 of 65 ranks is missing: 64.",
    evidence=(Evidence(text="no directory says that it is rank 64"),),
    remedy="Copy its files.",
)


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [
        (0.18, 0.224, "bubbles, in which it waits for another stage: 18 % to 22 % of the step"),
        (0.2, 0.2, "waits for another stage: 20 % of the step"),
        (None, None, "4 stages, each computes 70.0–75.0 ms a step"),
    ],
)
def test_a_pipeline_is_told_with_its_bubbles(least: float | None, most: float | None, words: str) -> None:
    text = " ".join(shown(replace(summary(), pipeline=JobPipeline(4, 70 * MS, 75 * MS, least, most))).split())
    assert words in text
    assert ("bubbles" in text) is (least is not None)


def shown(found: JobSummary, findings: tuple[Finding, ...] = (), width: int = 80, **console: object) -> str:
    out = io.StringIO()
    page = JobPage("train", found, findings, below=4)
    render_job(page, Console(file=out, width=width, **console))  # type: ignore[arg-type]
    return out.getvalue()


def test_everything_known_is_there() -> None:
    words = " ".join(shown(summary(slow=3), (MISSING, SLOW)).split())
    for fact in (
        "stepscope train PyTorch 2.13.0 · cuda · 64 ranks on 8 hosts",
        "! 1 of 65 ranks is missing: 64. Rank 3 keeps the other 63 waiting 30.0 of 100 ms a step",
        "1 Look at the clocks of this device. saves 28.0–30.0 ms (29 %)",
        "it is the last in 50 of 50 collectives; gemm_1 takes 18 ms, its peers 9",
        "3 100 ms 90.0 ms 0.67 none 50 of 50 node000",
        "63 other ranks min 25 % median 75 % max",
        "own time 60.0 ms 60.1 ms 60.3 ms 60.5 ms 60.6 ms",
        "waits 29.4 ms 29.5 ms 29.7 ms 29.9 ms 30.0 ms",
        "5 steps median 100 ms",
        "█ computing 50 % 45.0–55.0 ms",
        "gemm_0 4 9.00 ms 8.00–11.0 ms rank 3 20 %",
        "collectives 12 a step; 25.0 ms exposed, 10.0 ms overlapped; 21.0 ms waiting for others, 9.00 ms moving data",
        "clocks 64 ranks aligned to ±12.0 µs",
        "lost nothing",
    ):
        assert fact in words, fact


def test_a_job_of_one_rank_has_one() -> None:
    assert "· 1 rank on 1 host" in " ".join(shown(summary(1)).split())


def test_the_first_sentence_is_the_first_finding_about_time() -> None:
    assert job_verdict((MISSING, SLOW), summary(), duration_text) == SLOW.title
    healthy = job_verdict((MISSING,), summary(), duration_text)
    assert healthy == (
        "Nothing stands out: a step takes 100 ms on 64 ranks, 50 % of it computing, ranks wait 21.0 ms for each other."
    )


def test_a_job_of_which_too_little_is_known_is_not_called_healthy() -> None:
    known = summary()
    one = job_verdict((), replace(known, steps=1), duration_text)
    assert one.startswith("Nothing stands out of what one step can show: ")
    unlike = replace(known, unlike=(UnlikeSteps(0, 8.0 * MS, 15, 1.5 * MS), UnlikeSteps(2, 7.0 * MS, 15, 1.5 * MS)))
    assert "which are unlike the others of the run" in job_verdict((), unlike, duration_text)
    said = "the recorded steps of rank 0 take 8.00 ms, its other 15 1.50 ms; nor are those of rank 2"
    assert f"not typical {said}" in " ".join(shown(unlike).split())
    unknown = replace(known, clocks=JobClocks(63, 12_000.0, (("it shares no collective", (7,)),)))
    assert "not all clocks are aligned" in job_verdict((), unknown, duration_text)
    hung = structs.replace(MISSING, cause="hung-collective")
    assert job_verdict((hung,), known, duration_text).startswith("Nothing stands out of the steps before the job hung")
    nothing = replace(known, ranks=tuple(replace(rank, step_ns=None) for rank in known.ranks), step_ns=None, steps=0)
    assert job_verdict((), nothing, duration_text) == "No steps were found on 64 ranks: nothing can be compared."


@pytest.mark.parametrize("count", [2, 8, 64, 1024, 16384])
@pytest.mark.parametrize("slow", [None, 1])
def test_it_is_one_screen_at_any_number_of_ranks(count: int, slow: int | None) -> None:
    text = shown(summary(count, slow=slow), (SLOW,) if slow else ())
    assert len(text.splitlines()) + 4 <= LINES
    assert "kernels by time" in text


def test_it_is_one_screen_whatever_is_to_be_said() -> None:
    # Given a job of which everything that can be wrong is wrong, in many words
    long = "a kernel of a very long name " * 30
    told = (Evidence(text=long),)
    worse = structs.replace(SLOW, title=f"Rank 3: {long}", remedy=long, evidence=told, ranks=tuple(range(60)))
    misfits = tuple(structs.replace(MISSING, title=f"{number} of 65 ranks are missing: {long}") for number in range(9))
    losses = tuple(LossOverRanks(name, 7, "data_loss", (1, 2, 5, 9, 17, 33, 34, 60)) for name in NAMED)
    clocks = JobClocks(60, 12_000.0, tuple((f"{long} {number}", (number,)) for number in range(4)))
    found = replace(summary(slow=3), losses=losses, clocks=clocks, not_recorded=("sync", "copy"))
    lines = shown(found, (*misfits, worse, structs.replace(worse, title="b"), SLOW, SLOW)).splitlines()
    assert len(lines) + 4 <= LINES
    assert "! 7 more do not fit: findings.json" in " ".join(lines)
    assert any("58 more ranks that findings name" in line for line in lines)


@pytest.mark.parametrize("width", [*range(60, 120, 7), 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_the_terminal(width: int, encoding: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    page = JobPage("train", summary(slow=3), (MISSING, SLOW), below=4)
    render_job(page, Console(file=out, width=width))
    out.seek(0)
    for line in out.read().splitlines():
        assert cell_len(line) <= width
        assert line == line.rstrip()


def test_few_ranks_are_all_rows() -> None:
    lines = shown(summary(4, slow=3), (SLOW,)).splitlines()
    first = next(number for number, line in enumerate(lines) if line.split()[:2] == ["rank", "step"])
    assert [line.split()[0] for line in lines[first + 1 : first + 5]] == ["3", "0", "1", "2"]
    assert not any("median" in line and "25 %" in line for line in lines)


def test_unknown_is_a_dash_and_no_share_of_anything() -> None:
    known = summary(4)
    blank = replace(known.ranks[0], host=None, own_ns=None, wait_ns=None, times_last=None, meetings=None, speed=None)
    found = replace(
        known,
        ranks=(blank, *known.ranks[1:]),
        hosts=None,
        world_size=None,
        communication=JobCommunication(25.0 * MS, None, None, None, 12.0),
        not_recorded=("sync",),
    )
    words = " ".join(shown(found).split())
    assert "cuda · 4 ranks" in words
    assert "0 100 ms – – – – –" in words
    assert "12 a step; 25.0 ms exposed" in words
    assert "waiting for others" not in words
    assert "sync –" in words


def test_what_is_lost_names_its_ranks() -> None:
    cut = LossOverRanks("file_cut", 4, "data_loss", (3, 4, 5, 9))
    text = " ".join(shown(replace(summary(), losses=(cut, LossOverRanks("flow_dangling", 9, "info", (1,))))).split())
    assert "lost 4 file cut on rank 3-5, 9. The file ends in the middle" in text
    assert "for information: an arrow whose start or end is not in the file (" in text


def test_nothing_lost_is_said_only_where_it_was_checked() -> None:
    def lost(found: JobSummary) -> str:
        return " ".join(shown(found).split()).partition(" lost ")[2]

    assert lost(replace(summary(8), checked=8, imported=8)) == "nothing (checked against the files' own totals)"
    assert lost(replace(summary(8), checked=3, imported=8)).endswith("own totals of 3 of 8 ranks)")
    assert lost(replace(summary(8), imported=8)).startswith("nothing that the files show (they state no totals")
    assert lost(summary(8)) == "nothing"


def test_ranks_in_words() -> None:
    assert rank_list([9, 3, 4, 5]) == "3-5, 9"
    assert rank_list(range(0, 40, 2), most=3) == "0, 2, 4 and 17 more"


def test_plain_text_has_no_colour_and_a_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in shown(summary())
    assert "\x1b[" in shown(summary(), force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "▓" in shown(summary(), force_terminal=True)  # parts are told by signs


def test_names_from_a_trace_are_text() -> None:
    hostile = replace(summary().operators[0], name="\x1b]0;owned\x07[bold]gemm[/bold]\nnext")
    text = shown(replace(summary(), operators=(hostile,)))
    assert "\x1b" not in text
    assert "\\x1b]0;owned" in text
