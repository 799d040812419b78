"""A framework is one record: what it names exists, and everything that differs between frameworks comes from it."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepscope
from stepscope.collect import registry
from stepscope.collect.doctor import diagnosis
from stepscope.collect.frameworks import FRAMEWORKS, CollectorEntry, Framework
from stepscope.collect.start.environment import ProcessRole, role_of

SOURCE = Path(stepscope.__file__).parent


def entries(framework: Framework) -> list[CollectorEntry]:
    return [entry for entry in (framework.operators, *framework.waits, *framework.extras) if entry is not None]


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_what_a_record_names_exists(framework: Framework) -> None:
    for entry in entries(framework):
        collector = getattr(importlib.import_module(entry.module), entry.kind)()
        assert collector.name == entry.name
        assert getattr(collector, "framework", framework.name) == framework.name
    for module, name in filter(None, (framework.steps, framework.build, framework.early)):
        assert callable(getattr(importlib.import_module(module), name))
    assert framework.operators.name == framework.name


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_its_launcher_does_not_train(framework: Framework) -> None:
    for module in framework.launcher_modules:
        assert role_of(["python", "-m", module, "train.py"]) is ProcessRole.HELPER
    for script in framework.launcher_scripts:
        assert role_of(["python", f"/env/bin/{script}", "train.py"]) is ProcessRole.HELPER
    assert "stepscope" in framework.launched
    assert framework.launched.endswith(" run")


def test_collectors_start_in_this_order() -> None:
    assert [entry.name for entry in registry.COLLECTORS] == [
        *("torch", "mindspore", "paddle", "jax", "dataloader", "minddata", "paddle_data", "grain"),
        "grain_dataset",
        *("compilations", "garbage", "stack_samples", "cupti", "machine", "threads", "host", "nvml"),
        *("torch_state", "mindspore_state", "parallel", "mindspore_shapes", "paddle_state", "jax_state"),
        "python_stacks",
    ]


def test_doctor_looks_at_every_framework() -> None:
    assert {"PyTorch", *diagnosis.OTHERS.values()} == {framework.title for framework in FRAMEWORKS.values()}


#: A framework that nothing knows of but its record and the module that the record names.
FOLDER = {
    "newgrad.py": "__version__ = '1.5'\n",
    "newgrad_parts.py": """
from stepscope.collect.steps import Stepped
class Steps:
    def __init__(self, observe):
        self.observe = observe
        Steps.latest = self
    def install(self, *, late): pass
    def remove(self): pass
    def may_wait(self, steps): return ''
class Operators:
    name = framework = "newgrad"
    def available(self): return None
    def prepare(self, context): pass
    def start(self): pass
    def stop(self): return []
    def describe(self): return {"version": "1.5"}
def early(options): print("built early")
""",
    "start.py": """
import sys
from stepscope.collect import frameworks
frameworks.FRAMEWORKS["newgrad"] = frameworks.Framework(
    name="newgrad",
    title="NewGrad",
    launched="newrun … -m stepscope run",
    operators=frameworks.CollectorEntry("newgrad", "newgrad_parts", "Operators"),
    steps=("newgrad_parts", "Steps"),
    trial=lambda newgrad: None,
    early=("newgrad_parts", "early"),
)
from stepscope.cli.main import main
sys.exit(main(["run", "train.py"]))
""",
}


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    for name, text in {**FOLDER, "train.py": script}.items():
        (folder / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(SOURCE.parent)))}
    command = [sys.executable, "start.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=300)


def test_a_new_framework_is_one_record(tmp_path: Path) -> None:
    # When: a program trains with it
    loop = """
import newgrad, newgrad_parts
for _ in range(14):
    newgrad_parts.Steps.latest.observe(newgrad_parts.Stepped(newgrad_parts.Steps.latest, "SGD", "calls of SGD"))
"""
    done = run(tmp_path, loop)
    # Then: its early hook runs, its steps are found, its collector records, and nothing is missed of other frameworks
    [path] = tmp_path.glob("stepscope-runs/*/rank0/manifest.json")
    manifest = json.loads(path.read_text())
    assert "built early" in done.stdout
    assert manifest["steps"]["recorded"] == 5
    assert manifest["steps"]["optimizers"] == ["SGD"]
    assert manifest["collectors"]["newgrad"] == {"version": "1.5"}
    assert "unused" in manifest["collectors"]["torch"]


def test_its_launcher_is_named_where_no_step_is_found(tmp_path: Path) -> None:
    done = run(tmp_path, "import newgrad\n")
    assert "no optimizer stepped" in done.stderr
    assert "use `newrun … -m stepscope run` for them" in done.stderr


def literals(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            parts = [*node.keys, *node.values] if isinstance(node, ast.Dict) else node.elts
            yield node.lineno, {str(part.value) for part in parts if isinstance(part, ast.Constant)}


@pytest.mark.parametrize("room", ["collect", "cli", "report"])
def test_frameworks_are_listed_in_one_place(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        for line, texts in literals(ast.parse(path.read_text(encoding="utf-8"))):
            assert len(texts & set(FRAMEWORKS)) < 2, f"{path.relative_to(SOURCE)}:{line} lists frameworks again"
