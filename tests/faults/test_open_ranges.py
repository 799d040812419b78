"""A range that is open across two recordings: torch itself crashes on it, a training under stepscope does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.torch.programs import forked
from tests.frameworks.torch.recorder_file import read
from tests.sizes import Size

PROGRAM = """
import sys, torch, stepscope
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(8)])
def step():
    model(torch.randn(4, 16)).sum().backward()
epoch = None
for window in range(int(sys.argv[3])):
    with stepscope.profile(
        collector=sys.argv[2], activities=["cpu"], output=sys.argv[1], analyse="later", record_shapes=True
    ):
        for _ in range(5):
            step()
        if epoch is not None:
            epoch.__exit__(None, None, None)
        epoch = torch.profiler.record_function("epoch")
        epoch.__enter__()
        for _ in range(5):
            step()
print("done")
"""


@pytest.mark.parametrize(("collector", "capture"), [("kineto", "kineto_0.json"), ("native", "recorder.ssr")])
def test_a_range_open_across_two_windows_does_not_crash(
    collector: str, capture: str, tmp_path: Path, size: Size
) -> None:
    done = forked("-c", PROGRAM, tmp_path, collector, str(size.many(60)))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("done\n")
    captures = sorted(tmp_path.glob(f"*/rank0/capture/{capture}"))
    assert len(captures) == size.many(60)
    if collector == "kineto":
        assert all('"epoch"' in path.read_text() for path in captures), "the range is in every capture, ended with it"
    else:
        for path in captures:
            (epoch,) = [operator for operator in read(path).operators if operator.name == "epoch"]
            assert epoch.end is None, "it is open at the end, and the one before was open at the start"
