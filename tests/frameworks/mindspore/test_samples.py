"""Every sample of MindSpore's documents, on a CPU: only the device and the import are others.

``samples/`` holds the samples word for word. That of ``StopAtEpoch`` in the oldest document cannot run anywhere (its
constructor is called ``init``); the later documents corrected it.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import mindspore as ms
import polars as pl
import pytest

import stepscope
from stepscope.compat.mindspore import handler

SAMPLES = Path(__file__).with_name("samples")
MODES = ("GRAPH_MODE", "PYNATIVE_MODE")

pytestmark = pytest.mark.filterwarnings("ignore")

#: The network of the documents, with data enough for a window in the middle.
TRAINING = """
import numpy as np
import mindspore as ms
from mindspore import nn
from mindspore import Model
from mindspore.train.callback import Callback
import mindspore.dataset as ds
from mindspore.profiler import Profiler

class Net(nn.Cell):
    def __init__(self):
        super(Net, self).__init__()
        self.fc = nn.Dense(2, 2)

    def construct(self, x):
        return self.fc(x)

def generator():
    for i in range(5):
        yield (np.ones([2, 2]).astype(np.float32), np.ones([2]).astype(np.int32))

ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
net = Net()
optimizer = nn.Momentum(net.trainable_params(), 1, 0.9)
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
"""

CALLBACKS = """
data = ds.GeneratorDataset(generator, ["data", "label"])
model = Model(net, loss, optimizer)
model.train({epochs}, data, callbacks=[{callback}], dataset_sink_mode={sink})
"""

OWN_LOOP = """
step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
values, labels = ms.Tensor(np.ones([2, 2], np.float32)), ms.Tensor(np.ones([2], np.int32))

def train():
    step(values, labels)

def generator():
    for i in range(205):
        yield (np.ones([2, 2]).astype(np.float32), np.ones([2]).astype(np.int32))

ds = ds.GeneratorDataset(generator, ["data", "label"])
"""

#: The class of the later documents, as their own page of `profile` uses it.
PROFILE = """
from mindspore.profiler import profile, schedule, tensorboard_trace_handler
from mindspore.profiler import ProfilerLevel, ProfilerActivity, AicoreMetrics, ExportType, _ExperimentalConfig

experimental_config = _ExperimentalConfig(
    profiler_level=ProfilerLevel.Level0,
    aic_metrics=AicoreMetrics.AiCoreNone,
    l2_cache=False,
    mstx=False,
    data_simplification=False,
    export_type=[ExportType.Text])
step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
values, labels = ms.Tensor(np.ones([2, 2], np.float32)), ms.Tensor(np.ones([2], np.int32))
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.NPU],
             schedule=schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=2),
             on_trace_ready=tensorboard_trace_handler("./data"),
             profile_memory=False,
             experimental_config=experimental_config) as prof:
    for _ in range(12):
        step(values, labels)
        prof.step()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(handler, "chosen", (None, None))


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text(encoding="utf-8")


def run(text: str, mode: str) -> dict[str, Any]:
    """Run a program of the documents with another device, another import, and in this mode."""
    text = text.replace('device_target="Ascend"', 'device_target="CPU"').replace("GRAPH_MODE", mode)
    text = text.replace("from mindspore.profiler import", "from stepscope.compat.mindspore import")
    text = text.replace("ms.Profiler", "__import__('stepscope.compat.mindspore').compat.mindspore.Profiler")
    Path("program.py").write_text(text, encoding="utf-8")
    return runpy.run_path("program.py", run_name="__main__")


def recorded(directory: str = "data") -> list[Path]:
    return sorted(path.parent for path in Path(directory).glob("*/rank0/manifest.json"))


def counts(rank: Path, name: str) -> int:
    """How often an operator ran."""
    spans = stepscope.open(rank).tables["spans"].filter(kind="operator").collect()
    return spans.filter(pl.col("name").cast(pl.String) == name).height


def steps(rank: Path) -> int:
    return stepscope.open(rank).tables["steps"].collect().height


def check_results(rank: Path) -> None:
    names = {path.name for path in (rank / "results").iterdir()}
    assert {"step_trace_time.csv", "op_statistic.csv", "operator_details.csv", "trace_view.json"} <= names
    statistic = pl.read_csv(rank / "results" / "op_statistic.csv")
    assert "BiasAdd" in " ".join(map(str, statistic.rows()))
    assert json.loads((rank / "results" / "trace_view.json").read_text())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "directory"), [("1_training", "data"), ("2_training", "data"), ("4_training", "profiler_data")]
)
def test_a_training(name: str, directory: str, mode: str) -> None:
    program = run(sample(name), mode)
    (rank,) = recorded(directory)
    check_results(rank)
    assert counts(rank, "BiasAdd") == 2
    assert steps(rank) == 2
    assert counts(rank, "MatMul") == 4  # forward, and the gradient of the weights
    answer = json.loads(program["profiler"].op_analyse(["MatMul", "BiasAdd"]))
    assert sum(row["op_occurrences"] for row in answer["BiasAdd"]) == 2
    assert sum(row["op_occurrences"] for row in answer["MatMul"]) == 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["1_stop_at_step", "2_stop_at_step", "4_stop_at_step"])
def test_stop_at_step(name: str, mode: str) -> None:
    run(TRAINING + sample(name) + CALLBACKS.format(epochs=2, callback="StopAtStep(3, 7)", sink=False), mode)
    (rank,) = recorded()
    check_results(rank)
    assert counts(rank, "BiasAdd") == 5
    assert steps(rank) == 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "sink"), [("2_stop_at_epoch", False), ("4_stop_at_epoch", True)])
def test_stop_at_epoch(name: str, sink: bool, mode: str) -> None:
    run(TRAINING + sample(name) + CALLBACKS.format(epochs=4, callback="StopAtEpoch(2, 3)", sink=sink), mode)
    (rank,) = recorded()
    check_results(rank)
    assert counts(rank, "BiasAdd") == 10


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_of_ones_own(mode: str) -> None:
    run(TRAINING + OWN_LOOP + sample("4_own_loop"), mode)
    (rank,) = recorded()
    check_results(rank)
    assert counts(rank, "BiasAdd") == 100  # after the step of 100, up to that of 200


@pytest.mark.parametrize("mode", MODES)
def test_the_later_class_with_a_schedule(mode: str) -> None:
    run(TRAINING + PROFILE, mode)
    cycles = recorded()
    assert len(cycles) == 2
    for rank, numbers in zip(cycles, ([4, 5], [8, 9]), strict=True):
        check_results(rank)
        assert counts(rank, "BiasAdd") == 2
        assert stepscope.open(rank).tables["steps"].collect()["number"].to_list() == numbers


def test_trainable_parameters() -> None:
    from stepscope.compat.mindspore import ProfileOption, Profiler

    network = ms.nn.Dense(2, 3)
    assert Profiler.profile(network, ProfileOption.trainable_parameters) == {"trainable_parameters": 2}
    network.bias.requires_grad = False
    assert Profiler.profile(network=network, profile_option=None) == {"trainable_parameters": 1}
    with pytest.raises(ValueError, match="network should be an object"):
        Profiler.profile("network", ProfileOption.trainable_parameters)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.txt")), ids=lambda path: path.stem)
def test_the_samples_are_those_of_the_documents(path: Path, shared_data: Path) -> None:
    (document,) = (shared_data.parent / "spec").glob(f"{path.stem[0]}_*")

    def words(text: str) -> str:
        return " ".join(
            word for line in text.splitlines() for word in line.removeprefix("...").split() if word != ">>>"
        )

    assert words(path.read_text(encoding="utf-8")) in words(document.read_text(encoding="utf-8"))
