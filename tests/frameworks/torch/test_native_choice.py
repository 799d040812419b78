"""Unless a recorder is named, the native one records what it can and Kineto the rest; the manifest says which, why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stepscope
from stepscope.collect.options import Options
from stepscope.collect.torch import native_choice as choice
from tests.frameworks.torch.programs import TRAINING, environment, forked, manifest, recorded_spans, runs, stepscope_run


def served(output: Path, **options: Any) -> dict[str, Any]:
    """Return what the manifest says of the recorder of a small program."""
    with stepscope.profile(output=output, analyse="later", **options) as profile:
        torch.ones(2, 2).mm(torch.ones(2, 2))
    assert profile.recorded[0].wait(60)
    (run,) = runs(output)
    assert any(event["name"] == "aten::mm" for event in recorded_spans(run))
    found: dict[str, Any] = manifest(run)["collectors"]["torch"]
    return found


@pytest.mark.parametrize(
    "options",
    [{}, dict.fromkeys(("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops"), True)],
    ids=["plain", "everything"],
)
def test_natively_where_all_switches_are_served(options: dict[str, bool], tmp_path: Path) -> None:
    state = served(tmp_path, **options)
    assert state["recorder"] == "native"
    assert "unserved" not in state


def test_natively_where_ranks_tell_each_other_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    state = served(tmp_path)
    assert state["recorder"] == "native"
    assert "unserved" not in state


def test_by_kineto_where_the_recorder_knows_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a torch that was installed without the headers of its process groups, which it has joined."""
    monkeypatch.setattr(choice, "knows_groups", lambda _: False)
    assert choice.reason_for_kineto(Options()) is None
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert choice.reason_for_kineto(Options()) == "it does not serve collectives"


@pytest.mark.parametrize(("collector", "recorder"), [("auto", "native"), ("kineto", "kineto")])
def test_a_profile_function_of_the_programs_stays_and_stacks_are_left_out(
    collector: str, recorder: str, tmp_path: Path
) -> None:
    own = lambda *_: None  # noqa: E731 - compared by identity
    sys.setprofile(own)
    try:
        state = served(tmp_path, collector=collector, with_stack=True)
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)
    assert state["recorder"] == recorder
    assert "profile function of its own" in str(state)


def test_by_kineto_where_it_is_asked_for(tmp_path: Path) -> None:
    state = served(tmp_path, collector="kineto")
    assert state["recorder"] == "kineto"
    assert "native" not in state


PROGRAM = (
    TRAINING
    + """
for _ in range(12):
    step()
print("trained")
"""
)


@pytest.mark.slow
def test_a_compiler_that_takes_long_does_not_hold_the_training(tmp_path: Path) -> None:
    # Given a cache without recorder, and a compiler that does not come to an end
    compiler, script = tmp_path / "c++", tmp_path / "train.py"
    compiler.write_text("#!/bin/sh\nexec sleep 150\n")  # longer than the program may take
    compiler.chmod(0o700)
    script.write_text("from stepscope.collect.torch import native_choice\nnative_choice.PATIENCE = 1.0\n" + PROGRAM)
    done = stepscope_run(
        tmp_path / "runs", script, env=environment(CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path / "cache"))
    )
    # Then the training goes on without it, and the manifest says which recorder was used
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "building the recorder" in done.stderr
    (run,) = runs(tmp_path / "runs")
    state = manifest(run)["collectors"]["torch"]
    assert (state["recorder"], "not built yet" in state["native"]) == ("kineto", True)


@pytest.mark.slow
def test_the_summary_says_who_recorded(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    for collector, said in (("auto", "the native recorder"), ("kineto", "Kineto")):
        done = forked("-m", "stepscope", "run", "--collector", collector, "--output", tmp_path / collector, script)
        assert done.returncode == 0, done.stderr
        assert f"recorded by  {said}" in done.stderr
