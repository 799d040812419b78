"""Processes that stepscope starts run no module of the working directory or of the program's directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stepscope
from stepscope.collect.torch import native_build
from tests.frameworks.torch.programs import environment, python
from tests.sizes import first_quick

TORCH = native_build.installed(torch)
#: Each starts a process of ours and waits for it.
PROCESSES = {
    "report": "from stepscope.collect.session import background; background.run_report(rank)",
    "background": "from stepscope.collect.session import background; background.start_analysis(rank).wait()",
    "trial": (
        "from stepscope.collect.torch import native_build; "
        "native_build.failure_of('stepscope.collect.torch.native_trial', 'nowhere', gpus=False)"
    ),
    "comparison": "from stepscope.collect.doctor import diagnosis; diagnosis.ask('stepscope.trial', of='', seconds=60)",
    "engine": (
        "from stepscope.cluster.reduction.engines import Engine; "
        "assert dict(Engine('processes', workers=1).map(bytes, [b'x'])) == {0: b'x'}"
    ),
    "build": (
        "from stepscope.collect.torch import native_build; from stepscope.native.recorder.build import Torch; "
        f"torch = Torch({TORCH.version!r}, pathlib.Path({str(TORCH.directory)!r}), {TORCH.new_abi}); "
        "native_build.build_beside(torch, 300); assert native_build.is_built(torch)"
    ),
    "doctor": "from stepscope.collect.doctor import diagnosis; diagnosis.probe_torch()",
}


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    with stepscope.profile(output=output, analyse="later") as profile:
        torch.ones(2).add(1)
    profile.recorded[0].wait()
    return profile.recorded[0].rank_path


@pytest.mark.parametrize(
    "trial",
    [
        "native_build.try_out(native_build.obtain(native_build.installed(torch)))",
        "assert reference_speeds('torch', torch.__version__, threads=1)",
    ],
)
def test_a_trial_works_where_the_working_directory_was_removed(tmp_path: Path, trial: str) -> None:
    # oneMKL ends a process whose working directory is gone
    (tmp_path / "gone").mkdir()
    code = (
        "import os, torch\n"
        "from stepscope.collect.machine.reference_speeds import reference_speeds\n"
        f"from stepscope.collect.torch import native_build\nos.rmdir(os.getcwd())\n{trial}"
    )
    done = python("-c", code, cwd=tmp_path / "gone")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("process", "named"),
    # With the directory named as well, it is on the path twice; a build of the recorder takes minutes.
    [
        *first_quick(
            [(one, named) for named in (True, False) for one in PROCESSES if one != "build"], len(PROCESSES) - 1
        ),
        pytest.param("build", True, marks=pytest.mark.slow),
    ],
)
def test_a_module_in_the_working_directory_is_not_executed(
    tmp_path: Path, rank: Path, process: str, *, named: bool
) -> None:
    # Given modules with the names of libraries in the working directory, which also lies on the path of imports
    executed = tmp_path / "executed"
    for name in ("polars", "torch"):
        text = f"open({str(executed)!r}, 'a').write({name!r}); raise ImportError('not the library')"
        (tmp_path / f"{name}.py").write_text(text)
    path = f"{environment().get('PYTHONPATH', '')}:{tmp_path if named else ''}"
    code = f"import pathlib; rank = pathlib.Path({str(rank)!r}); {PROCESSES[process]}"
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")} if process == "build" else {}
    done = python("-c", code, cwd=tmp_path, env=environment(PYTHONPATH=path, **cache))
    assert done.returncode == 0, done.stderr
    assert not executed.exists(), executed.read_text()
    if process in ("report", "background"):
        assert (rank / "summary.json").exists()


def test_the_command_imports_nothing_of_the_working_directory(tmp_path: Path, rank: Path) -> None:
    """Given a folder of traces that somebody filled, and the command as a module: Python looks there first."""
    executed = tmp_path / "executed"
    (tmp_path / "polars.py").write_text(f"open({str(executed)!r}, 'a').write('polars')")
    done = python("-m", "stepscope", "report", str(rank.parent), "--format", "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not executed.exists()
