"""The first sentence about a rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.advise.finding import Evidence, Finding
from stepscope.advise.verdict import rank_verdict
from stepscope.analyse.step.summarise import summarise
from stepscope.analyse.step.summary import Entry, Summary
from stepscope.trace import tables
from tests.unit.analyse.step.test_summary import training


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(training().tables())


def test_the_first_finding_is_the_sentence(summary: Summary) -> None:
    finding = Finding(cause="a", title="9 of 10 ms go", evidence=(Evidence(text="9 ms"),), remedy="Change it.")
    assert rank_verdict([finding], summary) == "9 of 10 ms go."


def test_nothing_recorded_is_said() -> None:
    nothing = summarise(tables.lazy(tables.complete({})))
    assert rank_verdict([], nothing).startswith("Nothing was recorded")


def test_samples_alone_are_told_by_their_function() -> None:
    profile = Path(__file__).parents[2] / "data" / "speedscope" / "pyspy.speedscope.json"
    assert stepscope.open(profile).summary.sampled_only is not None
    said = rank_verdict([], stepscope.open(profile).summary)
    assert said.startswith("Only Python stacks were sampled: slow.<locals>.<genexpr> (prog.py:4) is 71 %")


def test_a_healthy_step_is_described(summary: Summary) -> None:
    said = rank_verdict([], summary)
    assert said == "Nothing stands out: the step is 40 % computing, gemm is 100 % of the device work."
    on_host = replace(summary, on_device=False, kernels=())
    assert rank_verdict([], on_host).endswith("aten::mm is 100 % of the operators' self time.")


def test_a_device_that_rests_is_not_healthy(summary: Summary) -> None:
    rests = tuple(replace(part, share=0.9 if part.name == "host only" else 0.05) for part in summary.split)
    said = rank_verdict([], replace(summary, split=rests))
    host = "aten::mm is 100 % of the operators' self time."
    assert said == f"No single cause stands out: the step is 90 % host only, {host}"


@pytest.mark.parametrize("part", ["communication", "idle", "copy"])
def test_a_step_that_hardly_computes_is_not_healthy(summary: Summary, part: str) -> None:
    split = tuple(replace(each, name=part, share=0.8) for each in summary.split[:1])
    said = rank_verdict([], replace(summary, split=split, on_device=False, kernels=()))
    assert said.startswith(f"No single cause stands out: the step is 80 % {part}")


def test_without_steps_the_whole_is_the_recording(summary: Summary) -> None:
    said = rank_verdict([], replace(summary, steps=replace(summary.steps, count=0)))
    assert said.startswith("Nothing stands out: the recording is 40 % computing")


def test_a_long_name_is_cut(summary: Summary) -> None:
    long = replace(summary, kernels=(Entry("x" * 2000, "kernel", 1, 1, 1.0),))
    assert f"{'x' * 79}… is 100 %" in rank_verdict([], long)


def roofline_of(times: dict[str, float], *, unknown: str = "", measured: str = "measured") -> dict[str, pl.DataFrame]:
    """Return the roofline of a step of 10 ms on a device that can do 100 GFLOP/s: time in ms by family, at 80 %."""
    rows = [
        {
            "Device_id": "cuda:0", "Family": family, "Total Time(us)": 1000 * ms, "FLOPs": round(80e6 * ms),
            "Peak(GFLOP/s)": None if family == unknown else 100.0, "Peak From": measured,
        }
        for family, ms in times.items()
    ]  # fmt: skip
    return {"roofline": pl.DataFrame(rows, schema_overrides={"Peak(GFLOP/s)": pl.Float64})}


@pytest.mark.parametrize(
    ("times", "known", "said"),
    [
        (
            {"matmul": 0.7, "convolution": 0.2},
            {},
            "90 % matrix products and convolutions at 80 % of what this device can do",
        ),
        (
            {"matmul": 0.2, "convolution": 0.7},
            {},
            "90 % convolutions and matrix products at 80 % of what this device can do",
        ),
        ({"matmul": 0.9}, {}, "90 % matrix products at 80 % of what this device can do"),
        ({"matmul": 0.3, "elementwise": 0.5}, {}, "40 % computing"),
        ({"matmul": 0.7, "convolution": 0.2}, {"unknown": "convolution"}, "40 % computing"),
        ({"matmul": 0.9}, {"measured": "measured while busy"}, "40 % computing"),
    ],
)
def test_products_are_told_by_what_the_device_can_do(
    summary: Summary, times: dict[str, float], known: dict[str, str], said: str
) -> None:
    whole = summary.steps.total_ns / 1e6
    found = rank_verdict([], summary, roofline_of({name: part * whole for name, part in times.items()}, **known))
    assert found.startswith(f"Nothing stands out: the step is {said}")
