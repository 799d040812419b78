"""Operators by the program's own line and by module: against tables built by hand and compiled programs of JAX."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse.anatomy.own_operators import operator_lines, operator_modules
from stepscope.analyse.operators.op_statistic import op_statistic
from stepscope.read import read_files
from stepscope.trace.tables import lazy
from tests.unit.analyse.build import Rank


def frame(file: str, line: int, function: str) -> dict[str, object]:
    return {"file": file, "line": line, "function": function}


def trained() -> Rank:
    """A forward pass in a module, its backward pass on another thread, and an operator outside of modules."""
    rank = Rank()
    host, engine, stream = rank.thread(), rank.thread(2), rank.stream()
    loop, library = frame("/home/me/train.py", 20, "main"), frame("/venv/site-packages/torch/nn/m.py", 5, "_call_impl")
    model = frame("/home/me/net.py", 7, "forward")
    rank.add("stacks", id=0, frames=[library, model, library, loop])
    rank.add("stacks", id=1, frames=[library, loop])
    linear = rank.span(host, "operator", 0, 10_000, "aten::linear", phase="forward")
    addmm = rank.span(host, "operator", 1_000, 8_000, "aten::addmm", phase="forward")
    node = rank.span(
        engine, "operator", 20_000, 12_000, "autograd::engine::evaluate_function: AddmmBackward0", phase="backward"
    )
    backward = rank.span(engine, "operator", 21_000, 10_000, "AddmmBackward0", phase="backward")
    product = rank.span(engine, "operator", 22_000, 7_000, "aten::mm", phase="backward")
    loss = rank.span(host, "operator", 12_000, 3_000, "aten::mse_loss", phase="forward")
    launch = rank.span(engine, "runtime", 23_000, 1_000, "cudaLaunchKernel")
    kernel = rank.span(stream, "kernel", 30_000, 5_000, "gemm")
    rank.add("kernels", span=kernel, device=0, launch=launch, operator=product)
    rank.add("operators", span=linear, stack=0, module="Net_0/Linear_0")
    rank.add("operators", span=addmm)
    rank.add("operators", span=loss, stack=1)
    for span in (node, backward, product):
        rank.add("operators", span=span, stack=1)
    rank.add("flows", **{"from": addmm, "to": backward, "kind": "forward_backward"})
    return rank


def test_lines_have_the_operators_called_there_and_below() -> None:
    found = operator_lines(trained().tables())
    rows = {(row["Line"], row["Phase"]): row for row in found.iter_rows(named=True)}
    assert set(rows) == {(7, "forward"), (7, "backward"), (20, "forward"), (20, "backward")}
    # The linear layer takes 10 µs in net.py:7; the loss 3 µs in train.py:20, which called the other, too
    assert (rows[7, "forward"]["Count"], rows[7, "forward"]["Host Self(us)"]) == (2, 10)
    assert (rows[20, "forward"]["Count"], rows[20, "forward"]["Host Self(us)"]) == (1, 3)
    assert rows[20, "forward"]["Host Total(us)"] == 13
    # Its backward pass belongs to net.py:7, with the kernel
    backward = rows[7, "backward"]
    assert (backward["Count"], backward["Host Self(us)"], backward["Device Self(us)"]) == (3, 12, 5)
    assert backward["Operator"] == "aten::mm"
    assert rows[20, "backward"]["Count"] == 0


def test_modules_have_their_backward_pass_and_stand_below_each_other() -> None:
    found = operator_modules(trained().tables())
    assert found["Module"].to_list() == ["Net_0", "Net_0/Linear_0", None]
    net, linear, none = found.rows(named=True)
    assert (net["Depth"], net["Count"], net["Host Self(us)"], net["Host Total(us)"]) == (0, 0, 0, 22)
    assert (linear["Depth"], linear["Count"], linear["Host Self(us)"]) == (1, 5, 22)
    assert (linear["Device Total(us)"], linear["Forward(us)"], linear["Backward(us)"]) == (5, 0, 5)
    assert (none["Count"], none["Host Self(us)"]) == (1, 3)


def test_paths_that_a_source_shortened_are_not_the_programs_own() -> None:
    rank = Rank()
    host = rank.thread()
    frames = [
        frame("torch/nn/modules/linear.py", 5, "forward"),
        frame("threading.py", 9, "run"),
        frame("train.py", 3, "f"),
    ]
    rank.add("stacks", id=0, frames=frames)
    rank.add("operators", span=rank.span(host, "operator", 0, 1_000, "aten::mm"), stack=0)
    assert operator_lines(rank.tables())["File"].to_list() == ["train.py"]


def test_no_time_is_lost_or_counted_twice(shared_data: Path) -> None:
    # Given a compiled program of JAX, whose scopes name the layers
    tables = lazy(read_files([shared_data / "xplane" / "jax_cpu_mlp.xplane.pb"]))
    found = operator_modules(tables)
    assert found["Module"].to_list()[:2] == ["loss", "loss/layer1"]
    assert found["Host Self(us)"].sum() == pytest.approx(op_statistic(tables)["Total Time(us)"].sum())
    top = found.filter((pl.col("Depth") == 0) | pl.col("Module").is_null())
    assert top["Host Total(us)"].sum() == pytest.approx(found["Host Self(us)"].sum())
