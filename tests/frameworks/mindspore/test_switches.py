"""The data behind the switches: shapes, stacks, operations, memory and the parallel strategy of real trainings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import polars as pl
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore._c_expression import _DispatchGuardStack

import stepscope
from stepscope.collect.journal.journal import Journal
from stepscope.collect.mindspore.mindspore_calls import MindSporeShapesCollector
from stepscope.collect.mindspore.parallel_strategy import ParallelCollector, declared
from stepscope.collect.options import Options
from stepscope.collect.protocol import Context
from tests.unit.collect.reading import read_journal

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")

ms.set_device("CPU")

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
STEPS = 3


class Net(nn.Cell):
    """A convolution, a batch of matrix products, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, stride=2, has_bias=True)
        self.flatten, self.relu = nn.Flatten(), nn.ReLU()
        self.hidden, self.head = nn.Dense(8 * 16, 16), nn.Dense(16, 4)
        self.multiply = ops.BatchMatMul()

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.convolution(x))
        x = self.multiply(x, x)
        return self.head(self.relu(self.hidden(self.flatten(x))))


class Forward(nn.Cell):
    """What MindSpore counts itself: convolution and layers."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Tensor) -> Tensor:
        net = self.net
        return net.head(net.relu(net.hidden(net.flatten(net.relu(net.convolution(x))))))


class Recording:
    """A training of three steps, recorded with every switch on."""

    def __init__(self, mode: str, output: Path) -> None:
        ms.set_context(mode=MODES[mode])
        ms.set_seed(1)
        self.net = Net()
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        optimizer = nn.Momentum(self.net.trainable_params(), 0.01, 0.9)
        self.cell = nn.TrainOneStepCell(nn.WithLossCell(self.net, loss), optimizer)
        self.x = Tensor(np.random.default_rng(1).random((4, 3, 8, 8)).astype(np.float32))
        self.y = Tensor(np.arange(4, dtype=np.int32))
        self.train()
        switches = ("record_shapes", "profile_memory", "with_stack", "with_flops")
        with stepscope.profile(output=output, analyse="later", **dict.fromkeys(switches, True)) as profile:
            for _ in range(STEPS):
                self.train()
                profile.step()
        self.run = stepscope.open(next(output.iterdir()))
        self.capture = next(output.glob("*/rank0/capture"))
        self.operators = self.run.result("operator_details").with_columns(pl.col(pl.Categorical).cast(pl.String))

    def train(self) -> None:
        self.cell(self.x, self.y).asnumpy()

    def step(self, number: int) -> pl.DataFrame:
        return self.operators.filter(pl.col("Step ID") == number)

    @property
    def losses(self) -> dict[str, int]:
        return dict(self.run.tables["losses"].select(pl.col("what").cast(str), "count").collect().iter_rows())


@pytest.fixture(scope="module", params=MODES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    yield Recording(request.param, tmp_path_factory.mktemp(request.param))
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture(scope="module")
def pynative(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return Recording("pynative", tmp_path_factory.mktemp("pynative_alone"))


# Shapes and types

FORWARD = [
    ("Conv2D", [[4, 3, 8, 8], [8, 3, 3, 3]]),
    ("BiasAdd", [[4, 8, 4, 4], [8], []]),
    ("ReLU", [[4, 8, 4, 4]]),
    ("BatchMatMul", [[4, 8, 4, 4], [4, 8, 4, 4], [], []]),
    ("Flatten", [[4, 8, 4, 4]]),
    ("MatMul", [[4, 128], [16, 128], [], []]),
    ("BiasAdd", [[4, 16], [16], []]),
    ("ReLU", [[4, 16]]),
    ("MatMul", [[4, 16], [4, 16], [], []]),
    ("BiasAdd", [[4, 4], [4], []]),
]


def test_shapes_of_a_forward_are_those_of_the_net(recorded: Recording) -> None:
    for number in range(STEPS):
        rows = recorded.step(number).select("Name", "Input Shapes").rows()
        found = [(name, json.loads(shapes)) for name, shapes in rows if name != "Reshape"]
        assert found[: len(FORWARD)] == FORWARD or _without_flatten(found)[: len(FORWARD) - 1] == _without_flatten(
            FORWARD
        )


def _without_flatten(rows: list[Any]) -> list[Any]:
    return [row for row in rows if row[0] != "Flatten"]


def test_every_operator_has_shapes_and_every_step_the_same(recorded: Recording) -> None:
    assert recorded.operators["Input Shapes"].null_count() == 0
    steps = [recorded.step(number).select("Name", "Input Shapes").rows() for number in range(STEPS)]
    assert sorted(steps[0]) == sorted(steps[1]) == sorted(steps[2])


def test_gradients_have_the_shapes_of_what_they_are_gradients_of(pynative: Recording) -> None:
    rows = set(pynative.step(1).select("Name", "Input Shapes").rows())
    assert ("ReluGrad", "[[4,8,4,4],[4,8,4,4]]") in rows
    assert ("ReluGrad", "[[4,16],[4,16]]") in rows
    assert ("MatMul", "[[4,16],[16,128],[],[]]") in rows


def test_types_of_called_operators(pynative: Recording) -> None:
    types = dict(pynative.step(1).filter(pl.col("Name") == "MatMul").select("Name", "Input Data Types").rows())
    assert types == {"MatMul": '["Float32","Float32","Scalar","Scalar"]'}
    assert "operator_calls_overflow" not in pynative.losses


# Stacks


def test_every_operator_has_a_stack_that_ends_in_the_program(recorded: Recording) -> None:
    stacks = recorded.operators["Call Stack"]
    assert stacks.null_count() == 0
    assert stacks.str.contains(r"test_switches\.py\(\d+\): Recording\.train").all()


def test_a_forward_was_called_by_the_net_and_a_backward_was_not(pynative: Recording) -> None:
    in_net = pl.col("Call Stack").str.contains(r"test_switches\.py\(\d+\): Net\.construct")
    rows = pynative.step(1).select("Name", in_net).rows()
    assert rows[: len(FORWARD)] == [(name, True) for name, _ in FORWARD]
    assert not any(inside for _, inside in rows[len(FORWARD) :])


def test_calls_are_drawn_on_the_training_thread(recorded: Recording) -> None:
    spans = recorded.run.tables["spans"].filter(pl.col("kind") == "python").select("name", "track", "depth").collect()
    names = spans["name"].cast(str)
    assert names.str.ends_with("Recording.train").sum() == STEPS
    assert spans["track"].n_unique() == 1
    assert spans["depth"].max() > 5  # type: ignore[operator]
    assert not names.str.contains("stepscope/").any()


# Operations


def test_operations_are_those_counted_by_hand(recorded: Recording) -> None:
    convolution, products, hidden, head = (4 * 8 * 4 * 4 * 3 * 3 * 3, 4 * 8 * 4**3, 4 * 128 * 16, 4 * 16 * 4)
    counted = recorded.step(1).filter(pl.col("FLOPs") > 0)
    by_name = dict(counted.group_by("Name").agg(pl.col("FLOPs").sum()).iter_rows())
    # Forward, and where the input needs no gradient only that of the weight
    assert by_name["Conv2D"] == 2 * convolution
    assert by_name["Conv2DBackpropFilter"] == 2 * convolution
    assert by_name["BatchMatMul"] == 2 * products * 3
    assert by_name["MatMul"] == 2 * (hidden + head) * 3


def test_operations_are_those_that_mindspore_counts(tmp_path: Path) -> None:
    # Given: a compiled graph, whose operations MindSpore can count itself
    from mindspore.graph.api import flops_collection

    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        net, x = Forward(Net()), Tensor(np.ones((4, 3, 8, 8), np.float32))
        net(x).asnumpy()
        own = flops_collection(net.current_phase)[0]
        with stepscope.profile(output=tmp_path, analyse="later", record_shapes=True, with_flops=True):
            net(x).asnumpy()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    operators = stepscope.open(next(tmp_path.iterdir())).result("operator_details")
    assert own > 0
    assert operators["FLOPs"].sum() == own


# Memory


def test_all_memory_taken_belongs_to_an_operator(recorded: Recording) -> None:
    (path,) = recorded.capture.glob("mindspore/cpu_ms_memory_record_*.txt")
    lines = [tuple(map(int, line.split(","))) for line in path.read_text().split("\n")[1:] if line]
    taken = sum(max(after[1] - before[1], 0) for before, after in pairwise(lines))
    blocks = recorded.run.result("operator_memory")
    assert blocks["Size(KB)"].sum() * 1024 == pytest.approx(taken)
    # Then: all but what is taken behind the last operator, as the number of the loss that the program asks for
    assert blocks["Name"].null_count() <= 2
    largest = blocks.sort("Size(KB)", descending=True).select(pl.col("Name").cast(str), "Size(KB)").row(0)
    assert largest[0] in {"Conv2D", "MatMul", "BatchMatMul", "ReLU", "BiasAdd", "Conv2DBackpropFilter"}


# Parallel strategy


def test_what_context_cells_and_operators_declare() -> None:
    class Sharded(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Dense(4, 4)
            self.second = nn.Dense(4, 2)
            self.second.pipeline_stage = 1
            self.multiply = ops.MatMul().shard(((1, 2), (2, 1)))
            layout = ms.Layout((2, 2), ("dp", "mp"))
            self.add = ops.Add().shard((layout("dp", "mp"), layout("dp", "mp")))

    net = Sharded()
    found = declared()
    assert found["context"]["device_num"] == 1  # type: ignore[index]
    assert found["context"]["parallel_mode"] == ms.get_auto_parallel_context("parallel_mode")  # type: ignore[index]
    assert found["stages"] == {"Sharded.second": 1}
    strategies = {row["operator"]: row for row in found["strategies"]}  # type: ignore[attr-defined]
    assert strategies["MatMul"] == {"cell": "Sharded", "operator": "MatMul", "in_strategy": [[1, 2], [2, 1]]}
    assert strategies["Add"]["in_layout"][0]["device_matrix"] == [2, 2]
    assert strategies["Add"]["in_layout"][0]["alias_name"] == ["dp", "mp"]
    assert net is not None


def test_the_strategy_is_metadata_of_the_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.ssj")
    collector = ParallelCollector()
    assert collector.available() is None
    collector.prepare(Context(0, tmp_path, Options(parallel_strategy=True), journal))
    collector.start()
    assert collector.stop() == []
    journal.close()
    found = read_journal(journal.path).metadata["parallel_strategy"]
    assert found["context"]["global_rank"] == 0
    assert json.loads(json.dumps(collector.describe())) == collector.describe()


# The dispatch mode changes nothing


def tensor(*shape: int) -> Tensor:
    return Tensor((np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1) / 10)


def in_place() -> Any:
    x = tensor(2, 3)
    same = x
    x += 1
    x *= 2
    x.add_(1)
    x.view(3, 2).mul_(3)
    x[1] = 5
    x[x > 6] = 0
    return x, same


def keywords() -> Any:
    x = tensor(2, 3)
    return mint.sum(x, dim=1, keepdim=True), x.sum(axis=0), mint.add(x, x, alpha=3), ops.clamp(x, min=0.2, max=0.5)


def several_results() -> Any:
    return mint.split(tensor(4, 4), 2), mint.max(tensor(3, 3), dim=1), ops.topk(tensor(5), 2)


def kinds() -> Any:
    x = tensor(2)
    return x + 1.5, x.astype(ms.int32) + 1, x > 0.15, x == x, -x, x**2, abs(-x), 1 - x, x.tolist(), (x[:1]).item()


def lists() -> Any:
    x = tensor(2, 2)
    return mint.cat([x, x]), ops.stack((x, x)), mint.where(x > 0.2, x, 0), x[0], x[:, 1:], x[Tensor([0, 1])]


class Own(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x * x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout * 100 * x,)


def gradients() -> Any:
    layers = nn.SequentialCell(nn.Dense(2, 2, weight_init="ones", bias_init="zeros"), nn.ReLU())
    layers.recompute()
    return ms.grad(Own())(tensor(2, 2)), ms.grad(layers)(tensor(2, 2))


def parameters() -> Any:
    parameter = ms.Parameter(tensor(3), name="p")
    optimizer = nn.SGD([parameter], 0.1)
    loss, gradient = ms.value_and_grad(lambda: (parameter * parameter).sum(), None, [parameter])()
    optimizer(gradient)
    ops.assign_add(parameter, tensor(3))
    return loss, gradient, parameter


def seeded() -> Any:
    ms.set_seed(3)
    return ops.dropout(tensor(20), p=0.5), ops.standard_normal((3,))


def compiled() -> Any:
    @ms.jit
    def function(x: Tensor) -> Tensor:
        return ops.relu(x) + 1

    return function(tensor(2, 2))


def error() -> Any:
    try:
        mint.matmul(tensor(2, 3), tensor(2, 3)).asnumpy()
    except RuntimeError as raised:
        return str(raised).split("\n")[0]
    return "no error"


def flat(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [part for item in value for part in flat(item)]
    return [(str(value.dtype), value.shape, value.asnumpy().tobytes())] if isinstance(value, Tensor) else [value]


@pytest.fixture
def shapes(tmp_path: Path) -> Iterator[MindSporeShapesCollector]:
    (tmp_path / "capture").mkdir()
    journal = Journal(tmp_path / "journal.ssj")
    collector = MindSporeShapesCollector()
    assert collector.available() is None
    collector.prepare(Context(0, tmp_path / "capture", Options(record_shapes=True), journal))
    yield collector
    collector.stop()
    journal.close()
    assert _DispatchGuardStack.depth() == 0


@pytest.mark.parametrize(
    "work",
    [in_place, keywords, several_results, kinds, lists, gradients, parameters, seeded, compiled, error],
    ids=lambda work: work.__name__,
)
def test_results_are_the_same(shapes: MindSporeShapesCollector, work: Callable[[], Any]) -> None:
    alone = flat(work())
    shapes.start()
    watched = flat(work())
    shapes.stop()
    assert watched == alone
    assert shapes.describe()["unreadable"] == 0


def test_the_programs_own_dispatch_mode_is_respected(shapes: MindSporeShapesCollector) -> None:
    seen = []

    class Mode(ms.utils.MsDispatchMode):  # type: ignore[misc]
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            seen.append(func.name)
            return func(*args)

    with Mode():
        shapes.start()
        tensor(2) * tensor(2)
        shapes.stop()
        assert _DispatchGuardStack.depth() == 1
    assert seen == ["Mul"]
    assert shapes.describe()["calls"] == 0
    assert "its own dispatch mode" in str(shapes.describe()["note"])


def test_a_mode_that_the_program_enters_in_the_window_works(shapes: MindSporeShapesCollector) -> None:
    seen = []

    class Mode(ms.utils.MsDispatchMode):  # type: ignore[misc]
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            seen.append(func.name)
            return func(*args)

    shapes.start()
    with Mode():
        tensor(2) * tensor(2)
    tensor(2) * tensor(2)
    shapes.stop()
    assert seen == ["Mul"]
    assert shapes.describe()["calls"] == 2


def test_stopped_on_another_thread_the_mode_stays_and_does_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.ssj")
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        collector = MindSporeShapesCollector()
        collector.prepare(Context(0, tmp_path / name, Options(record_shapes=True), journal))
        made.append(collector)
    made[0].start()
    thread = threading.Thread(target=made[0].stop)
    thread.start()
    thread.join()
    assert _DispatchGuardStack.depth() == 1
    assert (tensor(2) * 2).shape == (2,)
    # Then: the next window takes it over, and takes it out
    made[1].start()
    tensor(2) * tensor(2)
    made[1].stop()
    journal.close()
    assert _DispatchGuardStack.depth() == 0
    assert [collector.describe()["calls"] for collector in made] == [0, 1]
    assert "stays, and does nothing" in str(made[0].describe()["note"])
