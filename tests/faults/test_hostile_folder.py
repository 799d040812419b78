"""A folder of traces is data: nothing in it is unpickled, imported or executed (docs/reliability.md)."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.main import main
from tests.frameworks.torch.programs import LOOP, environment, manifest, python, runs
from tests.samples import DATA

TRACE = "kineto/hta/call_stack/backward_thread.json"
#: What runs data: modules, and functions of Python.
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "jsonpickle"}
FUNCTIONS = {"eval", "exec", "compile", "__import__"}
#: Writes a pickle that PyTorch's viewer reads, and reads none.
WRITES = {"memory_viz.py"}
ROOMS = ("read", "analyse", "report", "trace", "run.py")


class Bomb:
    def __init__(self, executed: Path) -> None:
        self.executed = executed

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.executed), "w")


def test_nothing_in_a_folder_of_traces_is_executed(tmp_path: Path, shared_data: Path) -> None:
    # Given a folder with a trace, beside which lie programs in every form that a careless reader executes
    executed, folder = tmp_path / "executed", tmp_path / "traces"
    folder.mkdir()
    shutil.copyfile(shared_data / TRACE, folder / "trace.json")
    for name in ("__init__", "sitecustomize", "usercustomize", "conftest", "json", "polars", "plugin", "trace"):
        (folder / f"{name}.py").write_text(f"open({str(executed)!r}, 'w')\n")
    for name in ("trace.pkl", "trace.pt", "cache.pickle", "trace.json.pkl", "tables.npy"):
        (folder / name).write_bytes(pickle.dumps(Bomb(executed)))
    (folder / "config.yaml").write_text(f"!!python/object/apply:builtins.open [{str(executed)!r}, w]\n")
    # When it is imported, by this process and by one whose working directory it is
    assert main(["import", str(folder), "--output", str(tmp_path / "runs")]) == 0
    command = ("-P", "-m", "stepscope", "import", ".", "--output", tmp_path / "others")
    done = python(*command, cwd=folder, env=environment())
    # Then the trace is read and nothing else has happened
    assert done.returncode == 0, done.stderr
    assert stepscope.open(tmp_path / "runs").tables["spans"].collect().height > 0
    assert not executed.exists()
    # as it would have, had one of them been executed
    pickle.loads((folder / "trace.pkl").read_bytes()).close()
    assert executed.exists()


def test_a_module_beside_the_program_with_the_name_of_a_library_is_not_executed(tmp_path: Path) -> None:
    # Given a module of the program's own that it does not import, named as the library that counts for the host
    (tmp_path / "psutil.py").write_text("import sys\nprint('executed')\nsys.exit(7)\n")
    (tmp_path / "train.py").write_text(LOOP)
    done = python(
        "-m", "stepscope", "run", "--output", tmp_path / "runs", tmp_path / "train.py", "12", env=environment()
    )
    assert (done.returncode, done.stdout) == (0, "trained 12\n"), done.stderr
    said = manifest(runs(tmp_path / "runs")[0])["collectors"]["host"]
    assert "psutil is a module of the program's" in json.dumps(said)


def test_what_reads_and_analyses_executes_no_data() -> None:
    package = Path(stepscope.__file__).parent
    files = [
        file
        for room in ROOMS
        for file in ([package / room] if room.endswith(".py") else (package / room).rglob("*.py"))
    ]
    assert len(files) > 100
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & MODULES or file.name in WRITES, file
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pickle":
                assert node.attr == "dumps", f"{file}:{node.lineno}"
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in MODULES, file
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in FUNCTIONS, f"{file}:{node.lineno}"


@pytest.mark.parametrize("how", ["written by everyone", "of another user"])
def test_a_capture_of_another_user_is_read_and_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    # Given a capture that is mine alone: nothing is said
    capture = Path(shutil.copy(DATA / "xplane" / "steps.xplane.pb", tmp_path))
    capture.chmod(0o600)
    assert main(["import", str(capture), "--output", str(tmp_path / "mine")]) == 0
    assert "files_of_others" not in capsys.readouterr().out
    # When somebody else could have written it
    if how == "written by everyone":
        capture.chmod(0o666)
    elif os.geteuid() == 0:
        os.chown(capture, 65534, 65534)
    else:
        pytest.skip("needs root, to give a file away")
    # Then it is read, also where it lies, and the loss names it; so does the run that is made of it
    losses = stepscope.open(capture).ranks[0].tables["losses"].collect()
    assert losses.filter(losses["what"] == "files_of_others")["count"].to_list() == [1]
    assert main(["import", str(capture), "--output", str(tmp_path / "theirs")]) == 0
    (run,) = (tmp_path / "theirs").iterdir()
    assert main(["check", str(run)]) == 0
    assert "1 × files_of_others (info" in capsys.readouterr().out
