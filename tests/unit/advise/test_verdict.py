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
            "Peak(GFLOP/s)": None if family == unknown else 100.0, "Peak From": measured, "Opcode": None,
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


def program_of(times: dict[str, float], mfu: float, **more: str) -> dict[str, pl.DataFrame]:
    """Return the roofline of a program whose fusions take times in ms by family, and how much of the device it uses."""
    rows = roofline_of(times)["roofline"].with_columns(
        Device_id=pl.lit(more.get("device", "cpu")), Opcode=pl.lit("fusion"), Phase=pl.lit("forward")
    )
    rows = rows.with_columns(
        pl.col("Family").replace("", None),
        pl.lit(more.get("measured", "measured")).alias("Peak From"),
        FLOPs=pl.when(pl.col("Family") == "").then(0).otherwise("FLOPs"),
    )
    steps = pl.DataFrame({"Device_id": rows["Device_id"][:1].extend(rows["Device_id"][:1]), "Step": [None, 5]})
    return {"roofline": rows, "step_efficiency": steps.with_columns(pl.lit(mfu).alias("MFU(%)"))}


def test_the_products_of_a_compiled_program_are_a_part_of_what_its_steps_compute(summary: Summary) -> None:
    # Given a step that computes for 90 % of its time, by instructions that run beside each other and in cut steps
    whole = summary.steps.total_ns / 1e6
    computing = replace(summary, split=tuple(replace(part, share=0.9) for part in summary.split[:1]))
    times = {"matmul": 1.8 * whole, "": 0.2 * whole}
    # Then nine tenths of that are products, which do in 81 % of the step what takes 40.5 % of it at the peak
    said = rank_verdict([], computing, program_of(times, 40.5))
    assert said == "Nothing stands out: the step is 81 % matrix products at 50 % of what this machine can do."
    # a product that returns before it can have computed may run on in the 10 % in which nothing is recorded
    begun = program_of(times, 40.5)
    rows = begun["roofline"].with_columns(FLOPs=10 * pl.col("FLOPs"))
    assert "81 % matrix products at 45 %" in rank_verdict([], computing, begun | {"roofline": rows})
    # and nothing is said of more than all, of unknown operations, and of a GPU's peaks without its matrix units
    for found in (
        program_of(times, 90.0),
        program_of(times, 40.5, measured="source", device="cuda:0"),
        {"roofline": program_of(times, 40.5)["roofline"]},
    ):
        assert "at" not in rank_verdict([], computing, found).split()
    unknown = program_of(times, 40.5)
    steps = unknown["step_efficiency"].with_columns(pl.lit(None, pl.Float64).alias("MFU(%)"))
    assert "at" not in rank_verdict([], computing, unknown | {"step_efficiency": steps}).split()
