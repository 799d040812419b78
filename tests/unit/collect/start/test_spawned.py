"""Which runs of a directory are trainings that a process has started."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stepscope.collect.start.spawned import SpawnedRanks
from tests.frameworks.torch.programs import python, runs

#: Records windows of one step.
WINDOWS = """
import sys, stepscope
for _ in range(int(sys.argv[2])):
    with stepscope.profile(output=sys.argv[1], analyse="later", quiet=True) as profile:
        profile.step()
    profile.recorded[0].wait()
"""


def test_windows_of_one_process_are_one_training(tmp_path: Path) -> None:
    for windows in ("2", "1"):
        done = python("-c", WINDOWS, tmp_path, windows)
        assert done.returncode == 0, done.stderr
    _, second, alone = found = runs(tmp_path)
    assert SpawnedRanks({"output": tmp_path}).recorded() == []  # nobody told them to record
    for run in found:
        path = run / "rank0" / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "parent_process": os.getpid()}))
    assert SpawnedRanks({"output": tmp_path}).recorded() == [alone, second]
