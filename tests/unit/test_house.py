"""The house keeps its own rules: imports run down, nothing is too long, each name is used once."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import stepscope
from stepscope.advise.observed import Observed
from stepscope.advise.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stepscope"

#: DESIGN §2: a room imports only from rooms on lower floors, and from itself.
FLOORS = {
    "errors": 0,
    "extensions": 0,
    "notebook_display": 0,
    "native": 1,
    "trace": 1,
    "collect": 2,
    "read": 2,
    "analyse": 2,
    "run": 3,
    "trial": 4,
    "cluster": 4,
    "comparison": 4,
    "advise": 5,
    "report": 6,
    "sql": 6,
    "view": 7,
    "compat": 8,
    "integrations": 8,
    "cli": 8,
}
#: Modules that stand outside the rooms: the public names, and ``python -m stepscope``.
DOORS = {"__init__", "__main__"}
MAX_FUNCTION, MAX_FILE, MAX_PARAMETERS, MAX_FILES, SMALL_MODULE = 60, 600, 6, 13, 50

#: What the training process loads must need the standard library only when it is imported.
LIGHT_ROOMS = ("collect",)
LIGHT_MODULES = ("trace/schema.py", "trace/losses.py", "trace/run_directory.py", "trace/blocks.py", "trace/clock.py")

#: Documented interfaces whose parameters are given by others: those of torch, MindSpore and the issues.
GIVEN_INTERFACES = {
    "collect/start/profile.py:__init__",
    "collect/schedule.py:schedule",
    "compat/mindspore/profiler.py:__init__",
}

#: Class → why two classes have this name.
SHARED_CLASS_NAMES = {
    "StepscopeCallback": "the same integration, in each trainer's interface",
    "profile": "the interface of stepscope, and the interface that MindSpore documents",
}

#: Folder → why it holds more than MAX_FILES files.
LARGE_FOLDERS = {
    "cli": "one file for each verb",
    "native": "each module in C stands beside its Python wrapper",
    "native/recorder": "the C++ sources of one library, which are compiled together",
}

#: Module → why it stands alone, although it is small and one module imports it.
SMALL_MODULES: dict[str, str] = {}

#: Importing and imported module on one floor → why.
LEVEL_IMPORTS = {
    (
        "cli/run.py",
        "stepscope.compat.stand_ins",
    ): "`run --as` puts an interface of compat/ in another's place",
}

#: Importing module and public name of the front door that lies above it → why.
UPWARD = {
    (
        "collect/session/recorded.py",
        "stepscope.run",
    ): "`RecordedWindow.open` gives the program its run; the front door imports what reads it on that call",
    ("run.py", "stepscope.cluster.job"): "`Run.job` gives all ranks as one job; the front door imports it on that call",
    ("run.py", "stepscope.advise.run_findings"): "`Run.findings`, likewise",
    ("run.py", "stepscope.advise.finding"): "the type of what `Run.findings` gives",
    (
        "notebook_display.py",
        "stepscope.report.inline",
    ): "what shows itself in a notebook calls the report when somebody looks",
    ("run.py", "stepscope.report.inline"): "`Run.timeline` gives what a notebook shows; imported on that call",
    ("run.py", "stepscope.sql.query"): "`Run.query` answers SQL; the front door imports it on that call",
}

#: Modules that list others by name. Each entry is a module of its own, whatever its size.
REGISTRIES = {
    "collect/registry.py": "a collector",
    "collect/frameworks.py": "a part of a framework",
    "analyse/results.py": "a question",
    "read/sniff.py": "a format",
    "report/registry.py": "a format of a report",
}

#: What a folder of `read/` that is not a format may import; a format may import all three.
SHARED_FOLDERS = {"common": set(), "chrome_json": {"common"}, "assemble": {"common"}}

#: Importing folder and imported module of another format in `read/` → why.
SIDEWAYS: dict[tuple[str, str], str] = {
    ("ascend", "mindspore.minddata_files"): "MindSpore's data pipeline writes the same files on an Ascend device",
}

#: Folders of rules, what of ours a rule uses, and the packages of others.
RULE_FOLDERS = ("advise/rules", "advise/forms")
RULE_MODULES = ("stepscope.advise.", "stepscope.analyse.", "stepscope.trace.schema.", "stepscope.trace.tables.")
RULE_PACKAGES = {"msgspec", "numpy", "polars"}
#: Modules of Python that reach files, other processes or the network.
OUTSIDE = {
    "fileinput",
    "glob",
    "io",
    "linecache",
    "mmap",
    "os",
    "shutil",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
}

#: Module of a rule and what it uses of another room → why.
RULES_BEYOND = {
    (
        "advise/rules/part_rules.py",
        "stepscope.collect.options.asked",
    ): "how the user wrote the recording, from the one table of options",
}

#: Test in `tests/unit` → why no module has its name.
TESTS_OF_SEVERAL = {
    "test_documents.py": "the documents",
    "test_house.py": "the whole house",
    "analyse/test_details.py": "results of several folders, from one set of tables",
    "cli/test_shapes.py": "the verbs over every shape of directory",
    "test_many_ranks.py": "the cost of a rank, from a file to its report",
    "report/test_pages.py": "the documents name what the registries hold",
}

#: Private name that tests use → why.
PRIVATE_NAMES_IN_TESTS = {
    "_children": "the list of multiprocessing in which the processes of a program are looked up",
    "_repr_mimebundle_": "the method that IPython calls of what shows itself",
    "_ExperimentalConfig": "the name that MindSpore documents for this class of its interface",
}


@cache
def python_files() -> tuple[Path, ...]:
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module by its name."""
    named = {".".join(("stepscope", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in python_files()}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def imported_modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named_modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules of ours that strings begin with: what ``import_module`` and ``python -m`` are given."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.match(r"stepscope(\.\w+)+", node.value)
            name = found[0] if found else ""
            while name and name not in modules():
                name = name.rpartition(".")[0]
            if name and name != "stepscope":
                yield name


#: Public name → the module it comes from, which the front door imports late.
HOMES = {
    name: found.__module__ for name in stepscope.__all__ if hasattr(found := getattr(stepscope, name), "__module__")
}


def public_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the homes of the public names that are used through the front door, which imports them late."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "stepscope":
            yield from (HOMES[alias.name] for alias in node.names if alias.name in HOMES)
        if isinstance(node, ast.Attribute) and node.attr in HOMES:
            owner = ast.unparse(node.value).replace('"', "'")
            if owner == "stepscope" or owner.endswith("import_module('stepscope')"):
                yield HOMES[node.attr]


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the modules of ours that a file imports, by statement, by a name in a string, or by the front door."""
    nodes = nodes_of(path)
    named = {*imported_modules(nodes), *named_modules(nodes), *public_names(nodes)}
    return frozenset(name for name in named if name in modules() and name != "stepscope" and modules()[name] != path)


def test_imports_run_down() -> None:
    wrong = [
        f"{relative(path)} on floor {FLOORS[here]} imports {name}"
        for path in python_files()
        if (here := room(path)) not in DOORS
        for name in sorted(imports_of(path))
        if (there := name.split(".")[1]) not in {here, *DOORS} and FLOORS[there] >= FLOORS[here]
        if (relative(path), name) not in (UPWARD if FLOORS[there] > FLOORS[here] else LEVEL_IMPORTS)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in python_files()} - DOORS <= set(FLOORS)


def test_formats_do_not_know_each_other() -> None:
    folders = {path.name for path in (SOURCE / "read").iterdir() if (path / "__init__.py").exists()}
    wrong = []
    for path in python_files():
        parts = path.relative_to(SOURCE).parts
        if parts[0] != "read" or parts[1] not in folders:
            continue
        here = parts[1]
        allowed = {here, *SHARED_FOLDERS.get(here, SHARED_FOLDERS)}
        for name in sorted(imports_of(path)):
            there = name.split(".")[2:]
            foreign = name.startswith("stepscope.read.") and there[0] in folders - allowed and len(there) > 1
            if foreign and (here, ".".join(there)) not in SIDEWAYS:
                wrong.append(f"{relative(path)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_training_process_needs_the_standard_library_only() -> None:
    allowed = {"stepscope", *sys.stdlib_module_names}
    for path in python_files():
        if room(path) in LIGHT_ROOMS or relative(path) in LIGHT_MODULES:
            top = [node for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
            foreign = {name.split(".")[0] for name in imported_modules(top)} - allowed
            assert not foreign, (relative(path), foreign)


#: Calls that open a file.
_OPENS = re.compile(
    r"(?:.*\.)?(?:open|(?:read|write)_(?:text|bytes)|loadtxt|fromfile|memmap|savetxt)"
    r"|(?:pl|polars)\.(?:read|scan)_\w+|(?:np|numpy)\.(?:load|save)\w*|json\.(?:load|dump)",
    re.DOTALL,
)


def beyond_results(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield what a rule uses beside what is observed: other modules, frameworks, and calls that open a file."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [f"{prefix}{alias.name}" for alias in node.names if not prefix.startswith(RULE_MODULES)]
            allowed = RULE_PACKAGES | (sys.stdlib_module_names - OUTSIDE)
            yield from (name for name in names if name.split(".")[0] not in allowed)
        elif isinstance(node, ast.Call) and _OPENS.fullmatch(called := ast.unparse(node.func)):
            yield called


def test_rules_look_at_what_is_observed_only() -> None:
    found = {
        (relative(path), what)
        for path in python_files()
        if relative(path.parent) in RULE_FOLDERS
        for what in beyond_results(nodes_of(path))
    }
    assert found == set(RULES_BEYOND)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_is_a_function_of_what_is_observed_alone(rule: Callable[[Observed], object]) -> None:
    assert inspect.signature(rule, eval_str=True).parameters == {
        "observed": inspect.Parameter("observed", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Observed)
    }


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import torch", "torch"),
        ("def rule(observed):\n    import jax.numpy as jnp", "jax.numpy"),
        ("from stepscope.collect.options import OPTIONS", "stepscope.collect.options.OPTIONS"),
        ("from stepscope.trace.run_directory import RunDirectory", "stepscope.trace.run_directory.RunDirectory"),
        ("import linecache", "linecache"),
        ("with open(path) as file: pass", "open"),
        ("Path(file).read_text()", "Path(file).read_text"),
        ("pl.scan_parquet(path)", "pl.scan_parquet"),
        ("np.load(path)", "np.load"),
        ("from pathlib import Path\nPath(file).name", None),
        ("import numpy as np\nfrom stepscope.analyse.quantities import count_text\nread_statistics(observed)", None),
    ],
)
def test_what_a_rule_uses_beyond_results_is_found(code: str, what: str | None) -> None:
    assert [*beyond_results(ast.walk(ast.parse(code)))] == ([what] if what else [])


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in named if name not in {"self", "cls"}])


def test_tail_limits() -> None:
    wrong = [f"{relative(path)} is too long" for path in python_files() if text_of(path).count("\n") > MAX_FILE]
    for path in python_files():
        for function in nodes_of(path):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{relative(path)}:{function.name}"
                length = (function.end_lineno or function.lineno) - function.lineno + 1
                if length > MAX_FUNCTION:
                    wrong.append(f"{name} has {length} lines")
                if name not in GIVEN_INTERFACES and parameters(function) > MAX_PARAMETERS:
                    wrong.append(f"{name} has {parameters(function)} parameters")
    assert not wrong, "\n".join(wrong)


#: The first line of a function of TypeScript that goes on, to the bracket it opens: ``function``, an arrow, a method.
_FUNCTION = re.compile(r"( *)(?:.*\bfunction\b.*|.*=> |(?!.*\b(?:if|for|while|switch|catch)\b).*\w\(.*)[{(]")


def typescript_functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield first line and number of lines of each function of some source.

    A function ends with the first line that is indented no deeper than its first and opens nothing again, which needs
    the indentation that all of ``page/src`` has.
    """
    for first, line in enumerate(lines):
        if head := _FUNCTION.fullmatch(line):
            ends = (last for last in range(first + 1, len(lines)) if not lines[last].startswith(f"{head[1]} "))
            last = next(last for last in ends if lines[last] and lines[last][-1] not in "{(")
            yield first + 1, last - first + 1


def test_tail_limits_of_the_browser_side() -> None:
    wrong = []
    for path in sorted((ROOT / "page" / "src").rglob("*.ts*")):
        lines = text_of(path).splitlines()
        name = path.relative_to(ROOT)
        wrong += [f"{name} is too long"] * (len(lines) > MAX_FILE)
        lengths = ((first, length) for first, length in typescript_functions(lines) if length > MAX_FUNCTION)
        wrong += [f"{name}:{first} has {length} lines" for first, length in lengths]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("export function One({ a }: Given): void {", "}"),
        ("function One(\n  a: number,\n): void {", "}"),
        ("const one = async (a: number): Promise<void> => {", "};"),
        ("class Of {\n  one(a: number): void {", "  }\n}"),
        ("export const One = () => (", ");"),
    ],
)
def test_the_lines_of_a_function_of_typescript_are_counted(before: str, after: str) -> None:
    inside = ["      if (a) {", "      }", "", "      [1, 2].map((b) => {", "      });"]
    lines = [*before.splitlines(), *inside, *after.splitlines(), "const other = 1;"]
    expected = len(lines) - 1 - 2 * before.startswith("class")
    assert max(length for _, length in typescript_functions(lines)) == expected


def test_no_broad_except_passes_in_silence() -> None:
    for path in python_files():
        for node in nodes_of(path):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(part, ast.Pass) for part in node.body):
                broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
                assert not broad, f"{relative(path)}:{node.lineno}"


def test_numbers_in_sentences_have_no_exponent() -> None:
    written = [path for path in SOURCE.rglob("*.py") if re.search(r":\.[1-5]g\}", path.read_text())]
    assert written == [SOURCE / "analyse" / "quantities.py"], "its number_text and duration_text write what people read"


def test_a_module_name_is_used_twice_at_most() -> None:
    stems = defaultdict(list)
    for path in python_files():
        if path.stem not in DOORS:
            stems[path.stem].append(relative(path))
    assert not {stem: paths for stem, paths in stems.items() if len(paths) > 2}


def test_a_class_name_is_used_once() -> None:
    classes = defaultdict(list)
    for path in python_files():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_CLASS_NAMES:
                classes[node.name].append(relative(path))
    wrong = [f"{name}: {', '.join(paths)}" for name, paths in sorted(classes.items()) if len(paths) > 1]
    assert not wrong, "\n".join(wrong)


def test_a_folder_holds_few_files() -> None:
    held: dict[str, int] = defaultdict(int)
    for path in SOURCE.rglob("*"):
        if path.suffix in {".py", ".c", ".cpp", ".h"} and path.stem not in DOORS:
            held[relative(path.parent)] += 1
    large = {folder for folder, count in held.items() if count > MAX_FILES}
    assert large == set(LARGE_FOLDERS), {folder: held[folder] for folder in large ^ set(LARGE_FOLDERS)}


def test_a_small_module_has_more_than_one_importer() -> None:
    importers = defaultdict(set)
    for path in python_files():
        for name in imports_of(path):
            importers[modules()[name]].add(relative(path))
    small = [path for path in python_files() if text_of(path).count("\n") < SMALL_MODULE and path.stem not in DOORS]
    alone = {
        relative(path): importers[path]
        for path in small
        if len(importers[path]) == 1 and not importers[path] & set(REGISTRIES)
    }
    assert set(alone) == set(SMALL_MODULES), {name: alone.get(name) for name in set(alone) ^ set(SMALL_MODULES)}


def test_a_unit_test_is_named_after_what_it_tests() -> None:
    unit, wrong = Path(__file__).parent, set()
    for path in unit.rglob("test_*.py"):
        folder = SOURCE / path.parent.relative_to(unit)
        names = {folder.name, *(found.stem for found in folder.glob("*") if found.suffix == ".py" or found.is_dir())}
        stem = path.stem.removeprefix("test_")
        if not any(stem == name or stem.startswith(name.rstrip("_") + "_") for name in names):
            wrong.add(path.relative_to(unit).as_posix())
    assert wrong == set(TESTS_OF_SEVERAL)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PRIVATE_NAMES_IN_TESTS


@cache
def private_names() -> frozenset[str]:
    """Return the private functions, classes, variables and attributes of stepscope."""
    found = set()
    for node in (node for path in python_files() for node in nodes_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return frozenset(filter(is_private, found))


def foreign_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that a file gives to modules, and to parts of modules, which are not ours."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = getattr(node, "module", None) or alias.name
                if module.split(".")[0] not in {"stepscope", "tests"}:
                    yield alias.asname or alias.name.split(".")[0]


#: Functions whose second argument names an attribute.
REPLACERS = {"setattr", "getattr", "delattr", "hasattr", "object"}


def private_uses(nodes: tuple[ast.AST, ...]) -> Iterator[str]:
    """Yield the private names of stepscope that a test imports, reads, replaces, or has a program in a string use."""
    foreign = {"self", "cls", *foreign_names(nodes)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "stepscope":
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and node.attr in private_names():
            if ast.unparse(node.value).split(".")[0] not in foreign:
                yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in REPLACERS:
            names = (argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant))
            yield from (name for name in names if name in private_names())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from private_uses_of_program(node.value)


@cache
def stems() -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in modules())


def private_uses_of_program(text: str) -> Iterator[str]:
    for owner, name in re.findall(r"\b(\w+)\.(_[A-Za-z]\w*)", text):
        if owner in stems() and name in private_names():
            yield name
    for names in re.findall(r"from stepscope[\w.]* import (.*)", text):
        yield from filter(is_private, re.findall(r"\w+", names))


def test_what_is_private_is_tested_through_what_is_public() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} uses {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__)  # it holds examples
        for name in private_uses(nodes_of(path))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from stepscope.run import _x", "_x"),
        ("from stepscope.read import sniff\nsniff._POSSIBLE", "_POSSIBLE"),
        ("from stepscope.read import sniff\nmonkeypatch.setattr(sniff, '_POSSIBLE', 1)", "_POSSIBLE"),
        ("monkeypatch.setattr('stepscope.read.sniff._POSSIBLE', 1)", "_POSSIBLE"),
        ("run('from stepscope.read import sniff; sniff._POSSIBLE = 1')", "_POSSIBLE"),
        ("import torch\ntorch._POSSIBLE", None),
        ("self._POSSIBLE", None),
    ],
)
def test_private_uses_are_found(code: str, name: str | None) -> None:
    assert set(private_uses(tuple(ast.walk(ast.parse(code))))) == ({name} if name else set())


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
