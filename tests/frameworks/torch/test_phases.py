"""Phases of a step: every operator of the forward pass is forward, and the summary's times are those of a stopwatch."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter_ns

import polars as pl
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import stepscope
from stepscope.analyse.step.phase_times import phase_times
from stepscope.analyse.step.step_trace_time import split
from stepscope.run import Run


@pytest.mark.parametrize("collector", ["native", "kineto"])
def test_nested_operators_of_the_forward_pass_are_forward(tmp_path: Path, collector: str) -> None:
    # Given attention that PyTorch computes with many nested operators, some of which have no backward
    values = torch.randn(2, 2, 8, 4, requires_grad=True)
    linear = torch.nn.Linear(4, 4)
    with stepscope.profile(output=tmp_path, analyse="later", collector=collector) as profile:
        for _ in range(2):
            with sdpa_kernel(SDPBackend.MATH):
                out = functional.scaled_dot_product_attention(values, values, values, is_causal=True)
            linear(out).reshape(-1).sum().backward()
            profile.step()
    # Then everything in the forward pass is forward, and nothing in the backward pass
    spans = Run(profile.recorded[0].path).tables["spans"].filter(pl.col("kind") == "operator").collect()
    outer = spans.filter(pl.col("name") == "aten::scaled_dot_product_attention")
    inside = spans.filter(
        pl.any_horizontal(
            pl.col("ts").is_between(row["ts"], row["ts"] + row["dur"]) for row in outer.iter_rows(named=True)
        )
    )
    assert {"aten::_safe_softmax", "aten::matmul", "aten::reshape"} <= set(inside["name"])
    assert inside["phase"].unique().to_list() == ["forward"]
    called = spans.filter(
        pl.col("name").cast(pl.String).is_in(["aten::linear", "aten::sum"]), pl.col("phase") != "backward"
    )
    assert called["phase"].unique().to_list() == ["forward"]
    backward = spans.filter(pl.col("name").cast(pl.String).str.starts_with("autograd::engine"))
    assert backward["phase"].unique().to_list() == ["backward"]


@pytest.mark.slow
def test_phases_of_the_summary_are_those_of_a_stopwatch(tmp_path: Path) -> None:
    # Given a training whose parts are timed
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters())
    batches = torch.utils.data.DataLoader(torch.randn(24, 256, 512), batch_size=None)
    taken: dict[str, list[int]] = {"forward": [], "backward": [], "optimizer": []}
    with stepscope.profile(output=tmp_path, analyse="later", collector="native") as profile:
        for batch in batches:
            times = [perf_counter_ns()]
            loss = model(batch).square().mean()
            times.append(perf_counter_ns())
            loss.backward()
            times.append(perf_counter_ns())
            optimizer.step()
            optimizer.zero_grad()
            times.append(perf_counter_ns())
            for name, begin, end in zip(taken, times, times[1:], strict=False):
                taken[name].append(end - begin)
            profile.step()
    # Then the phases are as long, but for steps where another process took the core between the two
    run = Run(profile.recorded[0].path)
    parts = split(run.tables)
    times = phase_times(run.tables, parts.windows, parts.work)
    for name, watch in taken.items():
        assert median(times[name] / watch) == pytest.approx(1, rel=0.15), name
    # and those of the summary are their sums, and add up to the steps
    found = {part.name: part.total_ns for part in run.summary.phases}
    assert {name: found[name] for name in taken} == {name: times[name].sum() for name in taken}
    assert sum(found.values()) == run.summary.steps.total_ns
    assert found["data"] == run.summary.data_wait.total_ns
