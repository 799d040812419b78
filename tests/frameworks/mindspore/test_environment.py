"""A MindSpore program is recorded by a variable alone, by one profiler and not two; and under ``--as mindspore``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.mindspore.programs import STEPS, TRAINING, counts
from tests.frameworks.torch.programs import environment, manifest, python, runs
from tests.unit.collect.reading import read_journal

#: The script of the documents (“enabling the profiler”), with its device replaced; it does not know of a profiler.
SAMPLE = """
import numpy as np
from mindspore import nn
import mindspore as ms
import mindspore.dataset as ds

class Net(nn.Cell):
    def __init__(self):
        super(Net, self).__init__()
        self.fc = nn.Dense(2, 2)

    def construct(self, x):
        return self.fc(x)


def generator():
    for i in range(2):
        yield (np.ones([2, 2]).astype(np.float32), np.ones([2]).astype(np.int32))


def train(net):
    optimizer = nn.Momentum(net.trainable_params(), 1, 0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
    data = ds.GeneratorDataset(generator, ["data", "label"])
    model = ms.Model(net, loss, optimizer)
    model.train(1, data)


if __name__ == '__main__':
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
"""
TRAIN = """
    net = Net()
    train(net)
"""


def steps(run: Path) -> list[int]:
    return list(read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"]["number"])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SAMPLE + TRAIN)
    return path


def said(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("stepscope:")]


def test_the_documents_own_line(tmp_path: Path, script: Path) -> None:
    # Given the variable of the documents, with a directory of its own
    text = (
        '{"start": true, "output_path": "%s", "memory": false, "hccl": false, "aicore_metrics": 0, "l2_cache": false}'
    )
    done = python(script, env=environment(MS_PROFILER_OPTIONS=text % (tmp_path / "data")), cwd=tmp_path)
    # Then there is one run, by us; MindSpore's own profiler has made nothing
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (run,) = runs(tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "train.py"]
    assert said(done.stderr) == [
        "stepscope: MS_PROFILER_OPTIONS: aicore_metrics records nothing here: it needs an Ascend NPU, which stepscope "
        "does not record. Everything else is recorded.",
        f"stepscope: recorded in {run}",
    ]
    # with both steps, their operators and the results
    assert steps(run) == [0, 1]
    assert counts(run)["MatMul"] == 4
    found = manifest(run)
    assert found["status"] == "complete"
    assert list(found["switches_unavailable"]) == ["aicore_metrics"]
    assert (run / "rank0" / "results" / "step_trace_time.csv").exists()


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_ours_with_some_steps(tmp_path: Path, script: Path, mode: str) -> None:
    script.write_text(TRAINING + STEPS["functions"])
    options = {"start": True, "output_path": "runs", "steps": "3:6", "analyse": "later", "profile_memory": True}
    done = python(script, mode, env=environment(STEPSCOPE_OPTIONS=json.dumps(options)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    assert steps(run) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ('{"start": "maybe"}', "'start' should be true or false"),
        ("{", "MS_PROFILER_OPTIONS is not JSON"),
    ],
)
def test_what_does_not_start(tmp_path: Path, script: Path, options: str, expected: str) -> None:
    done = python(script, env=environment(MS_PROFILER_OPTIONS=options), cwd=tmp_path)
    assert done.returncode == 0
    (line,) = said(done.stderr)
    assert expected in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_switched_off_mindspore_has_its_variable_again(tmp_path: Path, script: Path) -> None:
    options = environment(MS_PROFILER_OPTIONS='{"start": true, "output_path": "data"}', STEPSCOPE_STARTUP="0")
    done = python(script, env=options, cwd=tmp_path)
    assert done.returncode == 0
    assert said(done.stderr) == []
    assert list((tmp_path / "data").glob("*_ascend_ms"))


PROFILED = """
    profiler = ms.Profiler(output_path='./profiler_data')
    net = Net()
    train(net)
    profiler.analyse()
    import mindspore.profiler.profiler as module
    from mindspore.profiler.common.constant import ProfilerLevel
    from mindspore.profiler.schedule import ProfilerAction, Schedule
    assert Schedule(wait=0, warmup=1, active=1)(1) is ProfilerAction.RECORD_AND_SAVE
    print(ms.Profiler.__module__, ms.profiler.profile.__module__, module.analyse.__module__, ProfilerLevel.__module__)
"""


@pytest.mark.parametrize(
    "first",
    [
        "from mindspore.profiler import Profiler",
        "import mindspore.profiler.profiler",
        "import mindspore as ms; from mindspore import Profiler",
    ],
)
def test_as_mindspore_needs_no_change(tmp_path: Path, script: Path, first: str) -> None:
    script.write_text(f"{first}\n{SAMPLE}{PROFILED}")
    done = python("-m", "stepscope", "run", "--as", "mindspore", script, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    homes = done.stdout.splitlines()[-1].split()
    assert len(homes) == 4
    assert all(home.startswith("stepscope.compat.mindspore.") for home in homes)
    (run,) = runs(tmp_path / "profiler_data" / "profiler")
    assert steps(run) == [0, 1]
    assert counts(run)["MatMul"] == 4
    # MindSpore 2's own layout lies where MindSpore writes it; its own profiler has recorded nothing
    (beside,) = (tmp_path / "profiler_data").glob("*_ascend_ms")
    assert "stepscope" in json.loads((beside / "profiler_info_0.json").read_text())["written_by"]
    assert "MatMul" in (beside / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text()


def test_as_mindspore_of_a_script_without_a_profiler(tmp_path: Path, script: Path) -> None:
    done = python("-m", "stepscope", "run", "--as", "mindspore", script, env=environment(), cwd=tmp_path)
    assert done.returncode == 0
    assert said(done.stderr) == [
        "stepscope: Nothing was recorded: the script started no profiler of mindspore. Run it without --as, and "
        "stepscope finds its steps itself."
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_env_profiler(tmp_path: Path, script: Path) -> None:
    """A program that uses the class itself: what it asks for in its own environment begins where it says so."""
    ask: dict[str, Any] = {"start": True, "output_path": "data", "analyse": "later"}
    begin = f"""
    import os
    from stepscope.compat.mindspore import EnvProfiler
    os.environ["MS_PROFILER_OPTIONS"] = {json.dumps(ask)!r}
    EnvProfiler.init_profiler()
    net = Net()
    train(net)
    EnvProfiler().analyse()
    assert os.path.exists("data")
"""
    script.write_text(SAMPLE + begin)
    done = python(script, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "data")
    assert steps(run) == [0, 1]


def test_stepscope_run_counts(tmp_path: Path, script: Path) -> None:
    """Under ``stepscope run`` the variable starts nothing, neither ours nor MindSpore's."""
    asked = environment(MS_PROFILER_OPTIONS='{"start": true, "output_path": "data"}')
    command = ["-m", "stepscope", "run", "--skip", "0", "--later", "-o", "runs", script]
    done = python(*command, env=asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    assert steps(run) == [0, 1]
    assert not (tmp_path / "data").exists()


def test_the_workers_of_msrun_are_ranks(tmp_path: Path, script: Path) -> None:
    options = '{"start": true, "output_path": "%s", "analyse": "later"}' % (tmp_path / "data")
    launch = Path(sys.executable).with_name("msrun")
    ports = ["--master_port", str(8200 + os.getpid() % 500)]
    command = [launch, "--worker_num=2", "--local_worker_num=2", *ports, "--join=True", script]
    path = f"{launch.parent}{os.pathsep}{os.environ['PATH']}"  # msrun starts the first `python` there
    done = subprocess.run(
        command,
        env=environment(MS_PROFILER_OPTIONS=options, PATH=path),
        cwd=tmp_path,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert not list(tmp_path.rglob("*_ascend_ms"))
    ranks = sorted(path.name for path in (tmp_path / "data").glob("*/rank*"))
    assert ranks == ["rank0", "rank1"]
    assert len(runs(tmp_path / "data")) == 1
