"""The summary shows what is known, says nothing about what is not, and fits the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from stepscope.advise.finding import Evidence, Finding
from stepscope.analyse.step.run_steps import NONE
from stepscope.analyse.step.summary import DataWait, Entry, Garbage, MemoryPeak, StepPart, Steps, Summary
from stepscope.report.terminal.printed_summary import render
from stepscope.trace.losses import CATALOGUE, Loss
from stepscope.trace.manifest import Manifest

MS = 1_000_000
SHARES = {
    "computing": 0.5,
    "communication": 0.25,
    "copy": 0.002,
    "data wait": 0.2,
    "sync": 0.0,
    "host only": 0.048,
    "idle": 0.0,
}
SUMMARY = Summary(
    on_device=True,
    devices=("cuda:0",),
    steps=Steps(5, 500 * MS, 100.0 * MS, 99.0 * MS, 110.0 * MS, 90 * MS, 112 * MS, 10.0, inferred=True),
    split=tuple(StepPart(name, round(500 * MS * share), 100 * MS * share, share) for name, share in SHARES.items()),
    operators=(Entry("aten::mm", "operator", 30 * MS, 20, 0.6),),
    kernels=(Entry("gemm<float>", "kernel", 40 * MS, 10, 0.4),),
    data_wait=DataWait(120 * MS, 100 * MS, 0.24, 5, 0),
    garbage=Garbage(5 * MS, 0.01, 3),
    memory=(MemoryPeak("cuda:0", 3 * 2**30, None),),
    resident_bytes=700 * 2**20,
    losses=(),
)
MANIFEST: Manifest = {
    "worker": "train",
    "rank": 1,
    "world_size": 2,
    "status": "complete",
    "steps": {"by": "optimizer step hooks"},
    "collectors": {"torch": {"version": "2.13.0"}},
}


FINDINGS = [
    Finding(
        cause="data-loader-slow",
        title="20.0 ms of 100 ms the training waits for its next batch",
        gain_ns=20 * MS,
        gain_low_ns=15 * MS,
        gain_high_ns=20 * MS,
        step_ns=100 * MS,
        evidence=(Evidence(text="a batch takes 20.0 ms to make"),),
        remedy="Load in workers: num_workers=1.",
    ),
    Finding(cause="other", title="Something else", evidence=(Evidence(text="a number"),), remedy="Change it."),
]


def shown(summary: Summary, manifest: Manifest = MANIFEST, width: int = 100, **console: object) -> str:
    out = io.StringIO()
    render(summary, FINDINGS, manifest, Console(file=out, width=width, **console))  # type: ignore[arg-type]
    return out.getvalue()


def test_at_most_three_findings_are_told() -> None:
    findings = [msgspec.structs.replace(FINDINGS[1], title=f"Cause {number}") for number in range(1, 6)]
    out = io.StringIO()
    render(SUMMARY, findings, MANIFEST, Console(file=out, width=100))
    text = out.getvalue()
    assert all(f"Cause {number}" in text for number in (1, 2, 3))
    assert "Cause 4" not in text
    assert "Cause 5" not in text


def test_everything_known_is_there() -> None:
    text = shown(SUMMARY)
    words = " ".join(text.split())
    for fact in (
        "stepscope train",
        "PyTorch 2.13.0 · cuda:0 · rank 1 of 2",
        "5 steps mean 100 ms median 99.0 ms 90.0 ms to 112 ms 10 steps/s found by the optimizer",
        "█ computing 50 % 50.0 ms",
        "▒ copy <1 % 200 µs",
        "aten::mm 4 6.00 ms 60 %",
        "gemm<float> 2 8.00 ms 40 %",
        "data wait 24.0 ms a step, 20.0 ms of it while nothing else worked, no workers",
        "garbage 3 pauses of Python's collector, 5.00 ms, 1 % of the steps",
        "memory peak cuda:0 3.00 GiB allocated · process 700 MiB resident",
        "lost nothing",
        "20.0 ms of 100 ms the training waits for its next batch. 1 Load in workers: num_workers=1. ",
        "a batch takes 20.0 ms to make 2 Something else a number",
    ):
        assert fact in words
    assert "idle" not in text  # it took no time


@pytest.mark.parametrize(
    ("source", "compared", "said"),
    [
        ("import", True, "lost nothing (checked against the file's own totals)"),
        ("import", False, "lost nothing that the file shows (it states no totals to check against)"),
        ("recording", False, "lost nothing"),  # its recorder counts what it loses
    ],
)
def test_nothing_is_lost_only_as_far_as_it_was_checked(source: str, said: str, *, compared: bool) -> None:
    text = shown(replace(SUMMARY, totals_compared=compared), {**MANIFEST, "source": source})  # type: ignore[typeddict-item]
    words = " ".join(text.split())
    assert said in words
    assert ("that the file shows" in words) == (source == "import" and not compared)


def test_a_program_without_steps_is_one_step() -> None:
    words = " ".join(shown(SUMMARY, {**MANIFEST, "steps": {"by": "the whole program is one step"}}).split())
    assert "10 steps/s the whole program is one step" in words


def test_the_bar_is_the_split() -> None:
    [bar] = [line.strip() for line in shown(SUMMARY, width=102).splitlines() if line.startswith(" ██")]
    assert bar == "█" * 50 + "▓" * 25 + "░" * 20 + "▚" * 5


@pytest.mark.parametrize("width", [*range(60, 120, 7), 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in shown(SUMMARY, width=width).splitlines():
        assert cell_len(line) <= width
        assert line == line.rstrip()


def test_what_is_lost_comes_with_its_advice() -> None:
    losses = (
        Loss("file_cut", 1, "data_loss", "trace.json", CATALOGUE["file_cut"][1]),
        Loss("flow_dangling", 1000, "info", "trace.json", CATALOGUE["flow_dangling"][1]),
        Loss("flow_dangling", 234, "info", "another.json", CATALOGUE["flow_dangling"][1]),
    )
    words = " ".join(shown(replace(SUMMARY, losses=losses)).split())
    assert f"lost 1 file cut. {CATALOGUE['file_cut'][1]}" in words
    assert "for information: an arrow whose start or end is not in the file (1,234)" in words


def test_an_empty_recording_is_shown_as_such() -> None:
    nothing = Summary(
        on_device=False,
        devices=(),
        steps=Steps(0, 0, 0.0, 0.0, 0.0, 0, 0, 0.0, inferred=False),
        split=tuple(StepPart(name, 0, 0.0, 0.0) for name in SHARES),
        operators=(),
        kernels=(),
        data_wait=DataWait(0, 0, 0.0, 0, None),
        garbage=Garbage(0, 0.0, 0),
        memory=(),
        resident_bytes=None,
        losses=(),
    )
    out = io.StringIO()
    render(nothing, [], {}, Console(file=out, width=100))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip()]
    assert lines[0] == "stepscope cpu · rank 0"
    assert lines[2:] == [
        "Nothing was recorded: the trace holds no operator and no device work.",
        "no steps found no event with a time",
        "lost nothing",
    ]
    # but where the steps of the run are known, they were found
    out = io.StringIO()
    render(replace(nothing, run=replace(NONE, count=40)), [], {}, Console(file=out, width=100))
    assert "no steps recorded  " in out.getvalue()


def test_a_recording_that_failed_says_so() -> None:
    assert "failed at step 7" in shown(SUMMARY, {**MANIFEST, "status": "failed at step 7"})


def test_plain_text_has_no_colour_and_a_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in shown(SUMMARY)
    coloured = shown(SUMMARY, force_terminal=True)
    assert "\x1b[" in coloured
    assert "▓" not in coloured  # parts are told by colour


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(SUMMARY, force_terminal=True)
    assert not any(code in text for code in ("\x1b[38", "\x1b[3", "\x1b[9"))
    assert "▓" in text  # parts are told by signs


def test_an_ascii_terminal_gets_ascii() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=80)
    render(SUMMARY, [msgspec.structs.replace(FINDINGS[0], title="für 汉字")], MANIFEST, console)
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "# computing 50 % 50.0 ms" in text
    assert "f\\xfcr \\u6c49\\u5b57" in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_headline_is_whole_on_two_lines(width: int) -> None:
    manifest = {**MANIFEST, "worker": "rank-34.Jul_15_10_52_41.1074_of_a_long_name", "rank": 34, "world_size": 300}
    devices = ("cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:5", "npu:10")
    first, second, *_ = shown(replace(SUMMARY, devices=devices), manifest, width=width).strip().splitlines()
    assert first.split() == ["stepscope", manifest["worker"]]
    assert second.strip() == "PyTorch 2.13.0 · cuda:0-3, cuda:5, npu:10 · rank 34 of 300"


def test_phases_and_rates_are_shown() -> None:
    phases = tuple(StepPart(name, 5 * ns, ns, 0.1) for name, ns in (("data", 0), ("forward", 4 * MS), ("other", MS)))
    operators = (
        Entry("layer3 backward", "operator", 10 * MS, 20, 0.6, flops=88e6),
        Entry("copy", "operator", 5 * MS, 20, 0.3),
    )
    text = shown(replace(SUMMARY, phases=phases, operators=operators), width=80)
    assert "forward 4.00 ms  other 1.00 ms\n" in text
    assert "data 0" not in text
    words = " ".join(text.split())
    assert "layer3 backward 4 2.00 ms 60 % 8.8 GFLOP/s" in words
    assert "copy 4 1.00 ms 30 % gemm" not in words
