"""What is recorded of a cell: all of it as one step, steps that it declares or optimizers take, or some of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stepscope.collect.start.flag_options import add_flags, option_values
from stepscope.errors import LifecycleError, UsageError
from stepscope.integrations.notebook_cell import CellRecording


def recording(directory: Path, *words: str, declares: bool = False) -> CellRecording:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    values = option_values(parser.parse_args([*words, "--output", str(directory), "--later"]))
    return CellRecording(values, declares=declares)


def steps_of(cell: CellRecording) -> list[tuple[int, str]]:
    steps = cell.run.ranks[0].tables["steps"].collect()
    return list(zip(steps["number"], steps["source"].cast(str), strict=True))


def trained(times: int) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(times):
        weight.square().sum().backward()
        optimizer.step()


def test_a_cell_without_steps_is_one_step(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--steps", "all")
    cell.begin()
    sum(range(1000))
    cell.end()
    assert steps_of(cell) == [(0, "inferred")]
    assert cell.run.manifest["steps"]["by"] == "the whole cell is one step"
    assert cell.run.manifest["door"] == "notebook"
    assert "the whole cell is one step" in cell._repr_mimebundle_()["text/plain"]


def test_steps_are_those_of_optimizers_that_are_there_already(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--steps", "all")
    cell.begin()
    trained(4)
    cell.end()
    assert steps_of(cell) == [(number, "inferred") for number in range(4)]
    assert "aten::mul" in cell.run.results["op_statistic"]["OP Type"].cast(str).to_list()


def test_declared_steps_count_more_than_optimizers(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--steps", "all", declares=True)
    cell.begin()
    for _ in range(3):
        trained(2)
        cell.step()
    cell.end()
    assert steps_of(cell) == [(number, "declared") for number in range(3)]


def test_some_declared_steps_are_recorded(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--steps", "2-3", declares=True)
    cell.begin()
    for _ in range(6):
        cell.step()
    cell.end()
    assert steps_of(cell) == [(2, "declared"), (3, "declared")]


def test_some_steps_of_the_optimizer_are_recorded(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--steps", "3-4")
    cell.begin()
    trained(8)
    cell.end()
    assert steps_of(cell) == [(3, "inferred"), (4, "inferred")]


def test_a_cell_that_ends_before_its_steps_says_what_to_select(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--skip", "5", "--active", "2", declares=True)
    cell.begin()
    cell.step()
    cell.end()
    with pytest.raises(UsageError, match=r"the cell ended after 1 step,.*--steps all"):
        _ = cell.run
    assert "Nothing was recorded" in cell._repr_mimebundle_()["text/plain"]


def test_an_error_ends_the_recording_and_what_was_recorded_stays(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--steps", "all", declares=True)
    cell.begin()
    cell.step()
    with pytest.raises(UsageError, match="still running"):
        _ = cell.run
    cell.end(ZeroDivisionError())
    assert steps_of(cell) == [(0, "declared")]
    assert cell.run.manifest["status"] == "failed at step 1"


def test_a_step_outside_of_the_cell_is_refused(tmp_path: Path) -> None:
    cell = recording(tmp_path, "--steps", "all", declares=True)
    with pytest.raises(LifecycleError, match="outside its cell"):
        cell.step()
    cell.begin()
    cell.end()
    with pytest.raises(LifecycleError, match="outside its cell"):
        cell.step()


@pytest.mark.slow
def test_a_cell_may_import_its_framework(tmp_path: Path) -> None:
    program = """
import argparse, sys
from pathlib import Path
from stepscope.collect.start.flag_options import add_flags, option_values
from stepscope.integrations.notebook_cell import CellRecording
parser = argparse.ArgumentParser()
add_flags(parser)
cell = CellRecording(option_values(parser.parse_args(["--steps", "all", "-o", sys.argv[1], "--later"])), declares=False)
cell.begin()
assert "torch" not in sys.modules
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()
cell.end()
print(cell.run.summary.steps.count, any(one.name == "aten::mul" for one in cell.run.summary.operators))
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "True"], done.stderr
