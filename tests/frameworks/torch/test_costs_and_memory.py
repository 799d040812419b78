"""Costs and memory of a real training: FLOPs as ``torch.utils.flop_counter`` has them, memory as its parameters say."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.analyse.memory.memory_curve import memory_curve, memory_peak
from stepscope.analyse.operators.operator_calls import host_operators
from stepscope.analyse.operators.operator_costs import operator_costs
from stepscope.trace.tables import Tables

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")]
BATCH, WORDS, WIDTH = 4, 16, 32


class Network(nn.Module):  # type: ignore[misc]
    """Every kind of product: attention, convolutions of one and two dimensions and back, recurrent, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(100, WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.recurrent = nn.GRU(WIDTH, 16, batch_first=True)
        self.conv, self.batch_norm = nn.Conv2d(1, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8)
        self.up, self.line = nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1), nn.Conv1d(4, 4, 3, dilation=2)
        self.out = nn.LazyLinear(10)

    def forward(self, words: Any) -> Any:
        hidden = self.norm(self.embed(words))
        hidden = hidden + self.attention(hidden, hidden, hidden)[0]
        image = self.batch_norm(self.conv(hidden[:, None])).relu()
        line = self.line(self.up(image).flatten(2))
        return self.out(line.flatten(1)) + self.recurrent(hidden)[0].mean()


class Trained:
    """A network, and one step of its training."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = Network()
        self.words, self.labels = torch.randint(0, 100, (BATCH, WORDS)), torch.randint(0, 10, (BATCH,))
        self.network(self.words)
        self.optimizer = torch.optim.Adam(self.network.parameters())

    def step(self) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.network(self.words), self.labels).backward()
        self.optimizer.step()

    @property
    def parameter_bytes(self) -> int:
        return sum(4 * one.numel() for one in self.network.parameters())


def profiled(path: Path, trained: Trained, steps: int) -> Tables:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=0, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        record_shapes=True,
        profile_memory=True,
    ) as profiler:
        for _ in range(steps):
            trained.step()
            profiler.step()
    return stepscope.open(path).ranks[0].tables


def test_flops_are_those_of_the_flop_counter(tmp_path: Path) -> None:
    # Given what PyTorch counts of one step, by operator
    trained = Trained()
    trained.step()
    with import_module("torch.utils.flop_counter").FlopCounterMode(display=False) as counter:
        trained.step()
    counted = counter.get_flop_counts()["Global"]
    expected = {str(name).replace("aten.", "aten::"): flops for name, flops in counted.items()}
    # When a step is profiled
    tables = profiled(tmp_path / "trace.json", trained, 1)
    costs = operator_costs(tables)
    named = costs.with_columns(host_operators(tables)["name"].gather(costs["row"]).cast(pl.String))
    products = named.filter(pl.col("family").is_in(["matmul", "convolution", "attention"]))
    # Then each kind of product has these operations
    assert dict(products.group_by("name").agg(pl.col("flops").sum()).iter_rows()) == expected
    assert products["flops"].sum() == counter.get_total_flops()
    assert products["bytes"].null_count() == 0


def test_memory_of_the_first_steps_is_what_the_parameters_say(tmp_path: Path) -> None:
    # Given a training that is profiled from its first step on: Adam makes two states as large as the parameters
    trained = Trained()
    tables = profiled(tmp_path / "trace.json", trained, 3)
    curve = memory_curve(tables).filter(pl.col("Step") > 0)
    state = curve["Optimizer State(MB)"].max() * 2**20
    # Then state and gradients have their sizes (Adam counts its steps in 4 bytes for each tensor)
    tensors = len(list(trained.network.parameters()))
    assert state == pytest.approx(2 * trained.parameter_bytes + 4 * tensors, rel=0.01)
    gradients = curve["Gradients(MB)"].max() * 2**20
    assert gradients == pytest.approx(trained.parameter_bytes, rel=0.05)
    assert memory_peak(tables)["Ratio(%)"].sum() == pytest.approx(100)
