"""``stepscope run --as mindspore``: a program of MindSpore 1.x finds the files that its profiler wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
import mindspore.context as context
import mindspore.nn as nn
from mindspore import Profiler, Tensor
from mindspore.ops import operations as P


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.add = P.Add()

    def construct(self, x, y):
        return self.add(x, y)


context.set_context(mode=context.GRAPH_MODE, device_target="CPU")
profiler = Profiler(output_path="data")
x = Tensor(np.ones((2, 3), np.float32))
Net()(x, x)
profiler.analyse()
"""


@pytest.mark.parametrize("stand_in", [True, False])
def test_the_files_of_older_versions_are_where_they_were(tmp_path: Path, *, stand_in: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM
        if stand_in
        else PROGRAM.replace(
            "from mindspore import Profiler,", "from stepscope.compat.mindspore import Profiler\nfrom mindspore import"
        )
    )
    command = ["-m", "stepscope", "run", "--as", "mindspore"] if stand_in else []
    done = subprocess.run(
        [sys.executable, *command, str(program)],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (path for path in (tmp_path / "data").iterdir() if not path.name.endswith("_ascend_ms"))
    names = {
        f"cpu_op_{what}_0.{kind}"
        for what, kind in (("detail_info", "csv"), ("type_info", "csv"), ("execute_timestamp", "txt"))
    }
    assert (folder.name == "profiler") is stand_in
    assert {path.name for path in folder.iterdir() if path.is_file()} >= (names if stand_in else set())
    if stand_in:
        assert "Add" in (folder / "cpu_op_type_info_0.csv").read_text()
