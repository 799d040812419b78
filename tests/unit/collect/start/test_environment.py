"""Recording by environment alone: which processes it concerns, and that nothing else notices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepscope
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.start.environment import MINDSPORES, OURS, ProcessRole, role_of

#: The sources under test: what an environment has installed may be those of another directory.
SOURCE = Path(stepscope.__file__).parents[1]
SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
TRACKER = "from multiprocessing.resource_tracker import main;main(4)"


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["python", "train.py", "--epochs", "3"], ProcessRole.PROGRAM),
        (["python", "-u", "train.py"], ProcessRole.PROGRAM),
        (["python", "-W", "ignore", "-X", "dev", "train.py", "-m", "pip"], ProcessRole.PROGRAM),
        (["python", "-Wignore", "train.py"], ProcessRole.PROGRAM),
        (["python", "-m", "project.train", "-c", "x"], ProcessRole.PROGRAM),
        (["python", "-uc", "import torch"], ProcessRole.PROGRAM),
        (["python"], ProcessRole.PROGRAM),
        (["python", "-"], ProcessRole.PROGRAM),
        (["python", "/env/bin/torchrun", "--nproc-per-node", "2", "train.py"], ProcessRole.HELPER),
        (["python", "-m", "torch.distributed.run", "train.py"], ProcessRole.HELPER),
        (["python", "-m", "torch.distributed.launch", "train.py"], ProcessRole.HELPER),
        (["python", "/env/bin/msrun", "--worker_num=2", "train.py"], ProcessRole.HELPER),
        (["python", "-m", "pip", "install", "x"], ProcessRole.HELPER),
        (["python", "-Im", "pip"], ProcessRole.HELPER),
        (["python", "/env/bin/pip", "list"], ProcessRole.HELPER),
        (["python", "-m", "stepscope", "run", "train.py"], ProcessRole.HELPER),
        (["python", "-m", "stepscope.collect.doctor.probe"], ProcessRole.HELPER),
        (["python", "-m", "stepscope_helper"], ProcessRole.PROGRAM),
        (["python", "/env/bin/stepscope", "report", "x"], ProcessRole.HELPER),
        (["python", "-s", "-c", TRACKER], ProcessRole.HELPER),
        (["python", "-c", SPAWN, "--multiprocessing-fork"], ProcessRole.UNSURE),
        (["python", "-c", "from multiprocessing.forkserver import main; main(4, 5, ['x'])"], ProcessRole.UNSURE),
        (["python", "/env/torch/_inductor/compile_worker/__main__.py", "--pickler"], ProcessRole.HELPER),
    ],
)
def test_what_a_process_is(command: list[str], role: ProcessRole) -> None:
    assert role_of(command) is role


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    """A folder with packages that go by the names of frameworks and tell what they see when they are imported."""
    for name in FRAMEWORKS:
        (tmp_path / f"{name}.py").write_text(f"import os; seen = os.environ.get({MINDSPORES!r})\n")
    yield tmp_path


def python(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in (OURS, MINDSPORES)}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**kept, "PYTHONPATH": os.pathsep.join((str(folder), str(SOURCE))), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


LOADED = "import sys; print(sorted(name for name in sys.modules if name.startswith('stepscope')))"


def test_without_the_variables_nothing_of_ours_is_loaded(tmp_path: Path) -> None:
    done = python(tmp_path, LOADED)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("variable", [OURS, MINDSPORES])
def test_a_process_that_imports_no_framework_is_left_alone(tmp_path: Path, variable: str) -> None:
    # Given options that are no JSON, which a program that trains would be told
    done = python(tmp_path, LOADED, **{variable: "{"})
    # Then there is the hook with its table of frameworks, nothing else of ours, no word and no directory
    assert (
        done.stdout == "['stepscope', 'stepscope.collect', 'stepscope.collect.frameworks', 'stepscope.collect.hooks', "
        "'stepscope.collect.hooks.post_import', 'stepscope.collect.start', 'stepscope.collect.start.environment']\n"
    )
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "switches", [{"STEPSCOPE_STARTUP": "0"}, {"PYTHONNOUSERSITE": "1", "STEPSCOPE_STARTUP": "0"}], ids=["0", "both"]
)
def test_the_hook_can_be_switched_off(tmp_path: Path, switches: dict[str, str]) -> None:
    code = "import sys; print('stepscope.collect.hooks.post_import' in sys.modules, len(sys.meta_path))"
    plain = python(tmp_path, code)
    done = python(
        tmp_path,
        f"{code}; from stepscope.collect.start import environment as e; print(e.current())",
        **{OURS: '{"start": true}', **switches},
    )
    assert done.stdout.splitlines()[1] == "None"
    assert done.stdout.split()[1] == plain.stdout.split()[1]


def test_mindspore_does_not_see_its_variable_but_children_do(packages: Path) -> None:
    code = "import mindspore, os; print(mindspore.seen, os.environ['MS_PROFILER_OPTIONS'])"
    done = python(packages, code, MS_PROFILER_OPTIONS='{"start": false}')
    assert (done.stdout, done.stderr) == ('None {"start": false}\n', "")


def test_a_module_that_cannot_be_imported_gets_the_variable_back(packages: Path) -> None:
    (packages / "mindspore.py").write_text("import absent_module\n")
    code = "import os\ntry:\n  import mindspore\nexcept ImportError: print(os.environ['MS_PROFILER_OPTIONS'])"
    assert python(packages, code, MS_PROFILER_OPTIONS="{}").stdout == "{}\n"


@pytest.mark.parametrize("framework", ["paddle", "jax"])
def test_wrong_json_is_one_warning_and_the_program_runs(packages: Path, framework: str) -> None:
    done = python(packages, f"import {framework}; print('trained')", STEPSCOPE_OPTIONS='{"start": tru')
    assert done.stdout == "trained\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("stepscope: STEPSCOPE_OPTIONS is not JSON (Expecting value: line 1 column 11")
    assert line.endswith("nothing is recorded, the program runs on.")


def test_start_must_be_true_itself(packages: Path) -> None:
    done = python(packages, "import jax; print('trained')", STEPSCOPE_OPTIONS='{"start": "yes", "output_path": "o"}')
    assert done.stdout == "trained\n"
    assert done.stderr == (
        "stepscope: STEPSCOPE_OPTIONS: 'start' should be true or false, but is \"yes\"; the default false is used.\n"
    )
    assert not (packages / "o").exists()


def test_other_ranks_do_not_repeat_a_warning(packages: Path) -> None:
    done = python(packages, "import jax", STEPSCOPE_OPTIONS="{", RANK="1", WORLD_SIZE="2")
    assert done.stderr == ""


def test_ours_counts_where_both_are_set(packages: Path) -> None:
    code = "import mindspore; from stepscope.collect.start import environment as e; print(e.current().variable)"
    done = python(packages, code, STEPSCOPE_OPTIONS="{}", MS_PROFILER_OPTIONS='{"start": true}')
    assert done.stdout == "STEPSCOPE_OPTIONS\n"
