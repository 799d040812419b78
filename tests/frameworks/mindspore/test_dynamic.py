"""``DynamicProfilerMonitor`` and ``mstx`` on real MindSpore: as a callback, by hand, and in two ranks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope
from stepscope.compat.mindspore import DynamicProfilerMonitor, mstx
from tests.frameworks.mindspore.programs import counts
from tests.frameworks.torch.programs import environment, manifest
from tests.unit.collect.reading import read_journal

ms = pytest.importorskip("mindspore")
CONFIG = "profiler_config.json"


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture
def model() -> Any:
    net = ms.nn.Dense(2, 2)
    loss = ms.nn.SoftmaxCrossEntropyWithLogits(sparse=True)
    return ms.Model(net, loss, ms.nn.Momentum(net.trainable_params(), 1, 0.9))


def data(batches: int) -> Any:
    def generator() -> Iterator[Any]:
        for _ in range(batches):
            yield np.ones([2, 2], np.float32), np.ones([2], np.int32)

    return ms.dataset.GeneratorDataset(generator, ["data", "label"])


def edit(folder: Path, **switches: object) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / CONFIG
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **switches}))


def run_of(monitor: Any) -> Path:
    (recorded,) = monitor.recorded
    recorded.wait()
    found: Path = recorded.path
    return found


def steps(run: Path, rank: int = 0) -> list[int]:
    return sorted(read_journal(run / f"rank{rank}" / "capture" / "journal.ssj").frames["steps"]["number"])


@pytest.mark.parametrize(("start", "stop"), [(1, 2), (3, 5)])
def test_as_a_callback(tmp_path: Path, model: Any, start: int, stop: int) -> None:
    # Given
    edit(tmp_path / "cfg", start_step=start, stop_step=stop)
    monitor = DynamicProfilerMonitor(cfg_path=str(tmp_path / "cfg"), output_path=str(tmp_path / "out"), poll_interval=1)
    assert isinstance(monitor, ms.train.Callback)
    assert isinstance(monitor, DynamicProfilerMonitor)
    # When
    model.train(4, data(2), callbacks=[monitor])
    # Then the steps of all epochs are counted from 1, and their operators are there and no others
    run = run_of(monitor)
    assert run.parent == tmp_path / "out" / f"rank0_start{start}_stop{stop}"
    assert steps(run) == list(range(start, stop + 1))
    assert counts(run)["ApplyMomentum"] == 2 * (stop - start + 1)
    assert manifest(run)["losses"] == {}


@pytest.mark.usefixtures("nothing_left_behind")
def test_by_hand_it_is_not_off_by_one(tmp_path: Path) -> None:
    """MindSpore's own records the iterations 4 and 5 where 3 and 4 are asked for."""
    edit(tmp_path, start_step=3, stop_step=4)
    monitor = DynamicProfilerMonitor(str(tmp_path), str(tmp_path / "out"), 1)
    operators = [ms.ops.ReLU(), ms.ops.Abs(), ms.ops.Exp(), ms.ops.Sin(), ms.ops.Cos(), ms.ops.Neg()]
    for operator in operators:
        operator(ms.Tensor(np.ones((4, 4), np.float32))).asnumpy()
        monitor.step()
    run = run_of(monitor)
    assert steps(run) == [3, 4]
    assert {name for name in counts(run) if name in ("ReLU", "Abs", "Exp", "Sin", "Cos", "Neg")} == {"Exp", "Sin"}


def test_wrong_arguments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match="The cfg_path must be a string"):
        DynamicProfilerMonitor()
    for interval in ("1", 0):
        DynamicProfilerMonitor(str(tmp_path), poll_interval=interval)
    assert [record.getMessage() for record in caplog.records] == [
        "Poll interval must be an integer, reset to 2.",
        "Poll interval must be greater than 1, reset to 2.",
    ]


def test_marks_and_ranges(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # outside of a profile nothing happens, and nothing is said, as in MindSpore
    assert mstx.range_start("before") == 0
    mstx.mark("")
    mstx.range_end(7)
    assert caplog.records == []
    with stepscope.profile(output=tmp_path, analyse="later") as prof:
        first = mstx.range_start("first")
        second = mstx.range_start("second", None, "domain_name")
        left = mstx.range_start("left open")
        assert len({first, second, left}) == 3
        assert min(first, second, left) > 0
        mstx.mark("moment", domain="domain_name")
        mstx.range_end(first)
        mstx.range_end(second, "domain_name")
        mstx.range_end(0)
        with caplog.at_level(logging.WARNING):
            mstx.mark("")
            assert mstx.range_start("x", domain="") == 0
            assert mstx.range_start("x", "stream") == 0
            mstx.range_end(-1)
    assert [record.getMessage() for record in caplog.records] == [
        "Invalid message for mstx.mark func. Please input valid message string.",
        "Invalid domain name for mstx.range_start func. Please input str and can not be empty.",
        "Invalid stream for mstx.range_start func. Expected mindspore.runtime.Stream but got <class 'str'>.",
        "Invalid range_id for mstx.range_end func. Please input return value from mstx.range_start.",
    ]
    journal = read_journal(prof.recorded[0].rank_path / "capture" / "journal.ssj")
    spans = {span["name"]: span["args"] for span in journal.spans if span["kind"] == "annotation"}
    assert spans == {
        "first": {"domain": "default"},
        "second": {"domain": "domain_name"},
        "moment": {"domain": "domain_name"},
        "left open": {"domain": "default", "not_closed": True},
    }
    assert journal.counted == {"span_not_closed": 1}


@pytest.mark.parametrize(
    ("switches", "names"),
    [
        ({"mstx_domain_include": ["a"]}, {"in a"}),
        ({"mstx_domain_exclude": ["a"]}, {"in b", "in default"}),
    ],
)
def test_domains(tmp_path: Path, switches: dict[str, Any], names: set[str]) -> None:
    edit(tmp_path, start_step=1, stop_step=1, mstx=True, **switches)
    monitor = DynamicProfilerMonitor(str(tmp_path), str(tmp_path / "out"), 1)
    for domain in ("a", "b", "default"):
        mstx.range_end(mstx.range_start(f"in {domain}", domain=domain), domain)
    monitor.step()
    journal = read_journal(run_of(monitor) / "rank0" / "capture" / "journal.ssj")
    assert {span["name"] for span in journal.spans if span["kind"] == "annotation"} == names


RANK = """
import json, sys, time
import numpy as np
import mindspore as ms
from stepscope.compat.mindspore import DynamicProfilerMonitor
ms.set_device("CPU")
folder, rank = sys.argv[1], int(sys.argv[2])
monitor = DynamicProfilerMonitor(folder + "/cfg", folder + "/out", 1)
relu, x = ms.ops.ReLU(), ms.Tensor(np.ones((4, 4), np.float32))
for number in range(1, 101):
    if rank == 0 and number == 10:
        path = folder + "/cfg/profiler_config.json"
        document = json.load(open(path))
        document.update(start_step=70, stop_step=72)
        json.dump(document, open(path, "w"))
    relu(x).asnumpy()
    time.sleep((0.05, 0.06)[rank])
    monitor.step()
for recorded in monitor.recorded:
    recorded.wait()
"""


@pytest.mark.slow
def test_two_ranks_start_at_the_same_step(tmp_path: Path) -> None:
    def start(rank: int) -> subprocess.Popen[bytes]:
        variables = environment(RANK_ID=str(rank), RANK_SIZE="2", STEPSCOPE_RUN_ID="job")
        return subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path), str(rank)], env=variables)

    ranks = [start(rank) for rank in range(2)]
    assert [process.wait(90) for process in ranks] == [0, 0]
    found = Counter()
    for rank in range(2):
        (path,) = (tmp_path / "out").glob(f"rank{rank}_start*/*/rank{rank}")
        found[tuple(steps(path.parent, rank))] += 1
    assert list(found.values()) == [2]
