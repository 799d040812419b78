from __future__ import annotations

from stepscope.analyse.device.kernel_origins import kernel_origins
from tests.unit.analyse.build import Rank


def test_a_generated_kernel_has_its_region_and_what_it_fuses() -> None:
    rank = Rank()
    thread, stream = rank.thread(), rank.stream()
    rank.span(thread, "operator", 0, 100, "Torch-Compiled Region: 0/1")
    rank.span(thread, "operator", 1, 98, "## Call CompiledFxGraph abc")
    operator = rank.span(thread, "operator", 10, 20, "triton_poi_fused_add_relu_3")
    plain = rank.span(thread, "operator", 200, 20, "aten::mm")
    rank.add("operators", span=plain, module="Net/linear", stack=0)
    rank.add("stacks", id=0, frames=[{"file": "/home/me/model.py", "line": 8, "function": "forward"}])
    for start, asked, name in ((30, operator, "triton_poi_fused_add_relu_3"), (50, plain, "gemm"), (90, plain, "gemm")):
        kernel = rank.span(stream, "kernel", start, 10, name)
        rank.add("kernels", span=kernel, device=0, operator=asked, graph=None)
    columns = ("Name", "Operator", "Fused", "Compiled Region", "Module", "Line", "Count")
    assert kernel_origins(rank.tables()).select(columns).rows() == [
        ("gemm", "aten::mm", None, None, "Net/linear", "/home/me/model.py:8 forward", 2),
        ("triton_poi_fused_add_relu_3", "triton_poi_fused_add_relu_3", "add_relu", "Torch-Compiled Region: 0/1",
         None, None, 1),
    ]  # fmt: skip


def test_kernels_of_a_graph_are_told_from_others() -> None:
    rank = Rank()
    stream = rank.stream()
    for start, graph in ((0, None), (20, 4), (40, 4)):
        kernel = rank.span(stream, "kernel", start, 10, "gemm")
        rank.add("kernels", span=kernel, device=0, graph=graph)
    assert kernel_origins(rank.tables()).select("Name", "Graph ID", "Count").rows() == [
        ("gemm", 4, 2),
        ("gemm", None, 1),
    ]
