"""The house keeps its own rules: imports run one way, nothing is too long, names are where they are said to be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepscope

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stepscope"

#: DESIGN §2: a room imports only from rooms on lower floors, and from itself.
FLOORS = {
    "errors": 0,
    "extensions": 0,
    "native": 1,
    "trace": 1,
    "collect": 2,
    "read": 2,
    "analyse": 2,
    "run": 3,
    "trial": 4,
    "cluster": 4,
    "advise": 4,
    "report": 5,
    "view": 6,
    "compat": 7,
    "integrations": 7,
    "cli": 8,
}
MAX_FUNCTION, MAX_FILE, MAX_PARAMETERS = 60, 600, 6

#: What the training process loads must need the standard library only when it is imported.
LIGHT_ROOMS = ("collect",)
LIGHT_MODULES = ("trace/schema.py", "trace/losses.py", "trace/run_directory.py", "trace/blocks.py", "trace/clock.py")


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_imported(path: Path) -> set[str]:
    names = [name.split(".") for name in imported_modules(ast.parse(path.read_text(encoding="utf-8")))]
    return {parts[1] for parts in names if parts[0] == "stepscope" and len(parts) > 1 and parts[1] in FLOORS}


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_run_down(path: Path) -> None:
    here = room(path)
    if here not in FLOORS:  # the package's own front door and `python -m stepscope`
        return
    wrong = {name for name in rooms_imported(path) if name != here and FLOORS[name] >= FLOORS[here]}
    assert not wrong, f"{path.relative_to(SOURCE)} on floor {FLOORS[here]} imports {sorted(wrong)}"


def test_every_room_has_a_floor() -> None:
    rooms = {room(path) for path in python_files()} - {"__init__", "__main__"}
    assert rooms <= set(FLOORS)


def top_level_imports(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name.split(".")[0] for name in imported_modules(node))


@pytest.mark.parametrize(
    "path",
    [path for path in python_files() if room(path) in LIGHT_ROOMS or str(path.relative_to(SOURCE)) in LIGHT_MODULES],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_the_training_process_needs_the_standard_library_only(path: Path) -> None:
    foreign = set(top_level_imports(ast.parse(path.read_text(encoding="utf-8")))) - set(sys.stdlib_module_names)
    assert foreign <= {"stepscope"}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in named if name not in {"self", "cls"}])


#: Documented interfaces whose parameters are given by others: those of torch, MindSpore and the issues.
GIVEN_INTERFACES = {
    "collect/start/profile.py:__init__",
    "collect/schedule.py:schedule",
    "compat/mindspore/profiler.py:__init__",
}


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_tail_limits(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE
    for function in functions(ast.parse(text)):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        assert length <= MAX_FUNCTION, f"{function.name} has {length} lines"
        if f"{path.relative_to(SOURCE)}:{function.name}" not in GIVEN_INTERFACES:
            assert parameters(function) <= MAX_PARAMETERS, f"{function.name} has {parameters(function)} parameters"


def test_no_broad_except_passes_in_silence() -> None:
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(part, ast.Pass) for part in node.body):
                broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
                assert not broad, f"{path.relative_to(SOURCE)}:{node.lineno}"


@pytest.mark.parametrize("name", stepscope.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(stepscope, name) is not None


def test_import_loads_no_framework_and_no_analysis() -> None:
    code = "import sys, stepscope; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"torch", "jax", "mindspore", "paddle", "polars", "numpy", "rich", "psutil", "msgspec"}


def test_help_loads_no_framework_and_no_analysis() -> None:
    code = "import sys; from stepscope.cli.main import build_parser; build_parser().format_help(); print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"torch", "polars", "numpy", "rich", "psutil", "msgspec"}


#: What names where packages came from: archives and indices by address, and the settings of pip, npm and apt.
_REGISTRY = re.compile(
    rb"https?://\S+\.(?:whl|tgz|deb)\b|https?://\S+/(?:simple|packages)/|https?://(?:registry|deb)\.|"
    rb"index-url ?=|^registry ?=|^deb(?:-src)? .*https?:",
    re.MULTILINE,
)


def test_no_file_names_this_machine_or_a_registry() -> None:
    parent = ROOT.parent
    here = parent if parent not in (Path("/"), Path.home(), Path(tempfile.gettempdir())) else ROOT
    machine = re.compile(rb"(?<![\w./-])" + re.escape(bytes(here)) + rb"/")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in (ROOT / name for name in listed.splitlines()):
        content = path.read_bytes() if path.is_file() else b""
        found = machine.search(content) or _REGISTRY.search(content)
        assert found is None, (path, found)
