"""What a loop of the program's own does besides training, outside of the recorded steps: it has a name in its steps."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.frameworks.torch.programs import manifest, runs, script, stepscope_run

#: It evaluates after steps 20 and 40, for 80 ms or more, and saves after steps 30 and 50.
DYNAMIC = """
import time
import paddle
from paddle import save

class Points(paddle.io.Dataset):
    def __init__(self, size, seconds):
        self.size, self.seconds = size, seconds

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return paddle.full([64], index / self.size)

net = paddle.nn.Sequential(paddle.nn.Linear(64, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 8))
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
held_out = paddle.io.DataLoader(Points(8, 0.01), batch_size=2)

def evaluate():
    net.eval()
    with paddle.no_grad():
        total = sum(float(net(batch).square().mean()) for batch in held_out)
    net.train()
    return total

for step, batch in enumerate(paddle.io.DataLoader(Points(240, 0), batch_size=4)):
    net(batch).square().mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    if step in (20, 40):
        assert evaluate() >= 0
    if step in (30, 50):
        save(net.state_dict(), "checkpoint.pdparams")
        save(optimizer.state_dict(), "checkpoint.pdopt")
print("trained", sorted(paddle.load("checkpoint.pdparams")) == sorted(net.state_dict()))
"""

#: It saves after steps 30 and 50.
STATIC = """
import numpy
import paddle

paddle.enable_static()
x = paddle.static.data("x", [None, 64], "float32")
net = paddle.nn.Sequential(paddle.nn.Linear(64, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 8))
loss = net(x).square().mean()
paddle.optimizer.Adam().minimize(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
program = paddle.static.default_main_program()
for step in range(60):
    executor.run(program, feed={"x": numpy.ones((8, 64), "float32")}, fetch_list=[loss])
    if step in (30, 50):
        paddle.static.save(program, "checkpoint")
paddle.static.load(program, "checkpoint", executor)
print("trained True")
"""


def recorded(folder: Path, text: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the results of all steps of a program, and the events in them with the number of their step."""
    done = stepscope_run(folder / "runs", "--skip", "10", script(folder, text), cwd=folder)
    assert (done.returncode, done.stdout) == (0, "trained True\n"), done.stderr
    (run,) = runs(folder / "runs")
    assert manifest(run)["losses"] == {}
    rank = stepscope.open(run).ranks[0]
    steps, events = (rank.tables[name].collect().sort("ts") for name in ("run_steps", "run_events"))
    events = events.with_columns(pl.col("name").cast(pl.String)).join_asof(steps.select("ts", "number"), on="ts")
    rows = rank.results["step_times"]
    assert isinstance(rows, pl.DataFrame)
    assert rows["Step"].to_list() == list(range(60))
    assert rows.filter("Recorded")["Step"].to_list() == [10, 11, 12, 13, 14]
    return rows, events


def steps_with(rows: pl.DataFrame, name: str) -> list[int]:
    return rows.filter(pl.col("Contains").str.split(", ").list.contains(name))["Step"].to_list()


@pytest.mark.slow
def test_an_evaluation_and_a_checkpoint_in_a_loop_are_named(tmp_path: Path) -> None:
    rows, events = recorded(tmp_path, DYNAMIC)
    # Then the step that follows has them, and no other has
    assert steps_with(rows, "evaluation") == [21, 41]
    assert steps_with(rows, "checkpoint") == [31, 51]
    # and there is one evaluation each, and two files are saved, whose times lie one behind the other
    evaluations, saves = (events.filter(pl.col("name") == name) for name in ("evaluation", "checkpoint"))
    assert evaluations["number"].to_list() == [21, 41]
    assert saves["number"].to_list() == [31, 31, 51, 51]
    assert (saves["ts"] + saves["dur"])[0] <= saves["ts"][1]
    # and an evaluation lasts for all of its batches, none of which the training waits for
    assert min(evaluations["dur"].to_list()) >= 80_000_000
    for number, took in evaluations.select("number", "dur").iter_rows():
        wait, step = rows.row(number, named=True)["Data Wait(us)"], rows["Duration(us)"][number]
        assert 0 < wait <= step - took / 1000
    assert rows["Data Wait(us)"][1:].null_count() == 0


@pytest.mark.slow
def test_a_checkpoint_of_a_static_program_is_named(tmp_path: Path) -> None:
    rows, events = recorded(tmp_path, STATIC)
    assert steps_with(rows, "checkpoint") == [31, 51]
    assert events.filter(pl.col("name") == "checkpoint")["number"].to_list() == [31, 51]
    assert steps_with(rows, "evaluation") == []
