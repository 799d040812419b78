"""The summary shows what is known, says nothing about what is not, and fits the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from stepscope.analyse.step.summary import DataWait, Entry, Garbage, MemoryPeak, StepPart, Steps, Summary
from stepscope.report.terminal.printed_summary import render
from stepscope.trace.losses import CATALOGUE, Loss
from stepscope.trace.run_directory import Manifest

MS = 1_000_000
SHARES = {"computing": 0.5, "communication": 0.25, "copy": 0.002, "data wait": 0.2, "host only": 0.048, "idle": 0.0}
SUMMARY = Summary(
    on_device=True,
    devices=("cuda:0",),
    steps=Steps(5, 500 * MS, 100.0 * MS, 99.0 * MS, 110.0 * MS, 90 * MS, 112 * MS, 10.0, inferred=True),
    split=tuple(StepPart(name, round(500 * MS * share), 100 * MS * share, share) for name, share in SHARES.items()),
    operators=(Entry("aten::mm", "operator", 30 * MS, 20, 0.6),),
    kernels=(Entry("void at::native::(anonymous namespace)::gemm<float>", "kernel", 40 * MS, 10, 0.4),),
    data_wait=DataWait(120 * MS, 100 * MS, 0.24, 5, 0),
    garbage=Garbage(5 * MS, 0.01, 3),
    memory=(MemoryPeak("cuda:0", 3 * 2**30, None),),
    resident_bytes=700 * 2**20,
    losses=(),
    look_first="Data wait: training waits.",
)
MANIFEST: Manifest = {
    "worker": "train",
    "rank": 1,
    "world_size": 2,
    "status": "complete",
    "steps": {"by": "optimizer step hooks"},
    "collectors": {"torch": {"version": "2.13.0"}},
}


def shown(summary: Summary, manifest: Manifest = MANIFEST, width: int = 100, **console: object) -> str:
    out = io.StringIO()
    render(summary, manifest, Console(file=out, width=width, **console))  # type: ignore[arg-type]
    return out.getvalue()


def test_everything_known_is_there() -> None:
    text = shown(SUMMARY)
    words = " ".join(text.split())
    for fact in (
        "stepscope train",
        "PyTorch 2.13.0 · cuda:0 · rank 1 of 2",
        "5 steps mean 100 ms p50 99.0 ms p95 110 ms 10 steps/s found by the optimizer",
        "█ computing 50 % 50.0 ms",
        "▒ copy <1 % 200 µs",
        "aten::mm 4 6.00 ms 60 %",
        "gemm<float> 2 8.00 ms 40 %",
        "data wait 24.0 ms a step, 20.0 ms of it while nothing else worked, no workers",
        "garbage 3 pauses of Python's collector, 5.00 ms, 1 % of the steps",
        "memory peak cuda:0 3.00 GiB allocated · process 700 MiB resident",
        "lost nothing",
        "▶ look first Data wait: training waits.",
    ):
        assert fact in words
    assert "idle" not in text  # it took no time


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
    assert "for information: 1,234 flow dangling" in words


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
        look_first="Nothing was recorded.",
    )
    lines = [" ".join(line.split()) for line in shown(nothing, {}).splitlines() if line.strip()]
    assert lines[0] == "stepscope cpu · rank 0"
    assert lines[2:] == [
        "no steps found the whole recording: 0 ms",
        "lost nothing",
        "▶ look first Nothing was recorded.",
    ]


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
    render(replace(SUMMARY, look_first="für 汉字"), MANIFEST, console)
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "# computing 50 % 50.0 ms" in text
    assert "f\\xfcr \\u6c49\\u5b57" in text
