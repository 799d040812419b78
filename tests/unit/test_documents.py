"""The documents: links lead somewhere, commands parse, and what they name exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.main import build_parser
from stepscope.collect.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".github", "benchmarks", "docs", "examples", "src", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])

_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)^(?P=fence)\s*$", re.M | re.S)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+(?:\([^()\s]*\))?)\)")
#: A line that somebody types: the command, after variables of the environment and a launcher that ends in `-m`.
_COMMAND = re.compile(r"^(?:\$ )?(?:\w+=(?:'[^']*'|\S*) )*(?:[\w.]+ (?:\S+ )*?-m )?(?P<command>stepscope(?: .*)?)$")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), flags=re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).lower().replace(" ", "-")
        names.add(name if not found[name] else f"{name}-{found[name]}")
        found[name] += 1
    return names


def links(text: str) -> Iterator[str]:
    """The targets of links that lead to a file of the repository."""
    for match in _LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        if not re.match(r"[a-z]+:", match["target"]):
            yield match["target"]


def fault(page: Path, target: str) -> str | None:
    """Why a link leads nowhere, or None."""
    file, _, anchor = target.partition("#")
    path = (page.parent / file).resolve() if file else page
    if not path.is_relative_to(ROOT):
        return f"{target} leads out of the repository"
    if not path.exists():
        return f"{target}: the file is missing"
    if anchor and anchor not in anchors(path):
        return f"{target}: the heading is missing"
    return None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    faults = [why for target in links(prose(page)) if (why := fault(page, target))]
    assert not faults, "\n".join(faults)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    assert fault(readme, "docs/definitions.md#step_trace_time") is None
    assert fault(readme, "docs/definitions.md#nothing") is not None
    assert fault(readme, "docs/nothing.md") is not None
    assert fault(readme, "../README.md") is not None
    assert list(links("[`a`](a.md#b) ![picture](c.svg) [web](https://example.org) `[code](d.md)`")) == [
        "a.md#b",
        "c.svg",
    ]


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            files = [(page.parent / target.partition("#")[0]).resolve() for target in links(prose(page))]
            waiting += [file for file in files if file.suffix == ".md" and file.is_file()]
    assert sorted(named(page) for page in (ROOT / "docs").glob("*.md") if page not in reached) == []


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["language"] in languages:
            yield match["code"]


def commands(page: Path) -> list[list[str]]:
    """The words of every `stepscope …` in the blocks of code of a page."""
    lines = [line for block in blocks(page, "", "sh", "bash", "console") for line in block.splitlines()]
    found = [match["command"] for line in lines if (match := _COMMAND.match(line))]
    return [shlex.split(command, comments=True)[1:] for command in found]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=named)
def test_commands_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser()
    for words in commands(page):
        try:
            parser.parse_args(words)
        except SystemExit as end:
            pytest.fail(f"stepscope {shlex.join(words)}: exit code {end.code}\n{capsys.readouterr().err}")


def test_commands_are_found() -> None:
    assert ["run", "train.py", "--epochs", "3"] in commands(ROOT / "README.md")
    assert sum(len(commands(page)) for page in PAGES) > 15


@pytest.mark.parametrize("page", [page for page in PAGES if [*blocks(page, "python")]], ids=named)
def test_programs_are_python_and_name_what_stepscope_has(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "stepscope":
                assert node.attr in {*stepscope.__all__, "compat"}, f"stepscope.{node.attr}"


def is_ours(call: ast.AST) -> bool:
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "stepscope"
    )


@pytest.mark.parametrize("page", [page for page in PAGES if [*blocks(page, "python")]], ids=named)
def test_calls_have_arguments_that_exist(page: Path) -> None:
    calls = [call for block in blocks(page, "python") for call in ast.walk(ast.parse(block)) if is_ours(call)]
    for call in calls:
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        function = getattr(stepscope, call.func.attr)
        keywords = dict.fromkeys(keyword.arg for keyword in call.keywords if keyword.arg)
        inspect.signature(function).bind(*call.args, **keywords)
        if function is stepscope.profile:
            assert set(keywords) <= {*OPTIONS, *inspect.signature(function).parameters}


def test_names_in_prose_exist() -> None:
    """A function that documents call `stepscope.NAME` is public."""
    known = {*stepscope.__all__, *(path.stem for path in (ROOT / "src" / "stepscope").iterdir()), "db", "pth"}
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            assert {*re.findall(r"`stepscope\.(\w+)", prose(page))} - known - {
                "crossing",
                "arrows_left_out",
            } == set(), page


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: ([\w.]+)$", page, flags=re.MULTILINE))
    public = {
        name: getattr(stepscope, name) for name in stepscope.__all__ if name not in {"__version__", "StepscopeError"}
    }
    homes = {f"{value.__module__}.{name}" for name, value in public.items()}
    assert homes | {"stepscope.errors"} <= shown
    for name in shown - {"stepscope.errors"}:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= listed


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@cache
def names_of_tests(file: Path) -> set[str]:
    """The names of the tests of a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_tests_that_a_page_names_exist() -> None:
    named_tests = [
        (page, *found) for page in PAGES for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", prose(page))
    ]
    assert sum(page.name == "reliability.md" for page, *_ in named_tests) > 80
    for page, file, name in named_tests:
        assert (ROOT / file).is_file(), f"{named(page)}: {file}"
        assert name in names_of_tests(ROOT / file), f"{named(page)}: {file}::{name}"


def test_every_fault_has_a_promise_and_a_test() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == list(range(1, 41))
    assert {len(row) for row in rows} == {5}
    for number, _, promise, tests, _ in rows:
        assert ("`tests/" in tests) != promise.startswith("**Not yet.**"), number


#: “is no trace” says “is not a trace”; “is no longer” and “are no more than” compare.
_COMPARES = (
    r"more|less|longer|later|sooner|shorter|faster|slower|larger|smaller|higher|lower|better|worse|closer|older|newer"
)
_NOT_PLAIN = re.compile(rf"\b(?:is|are) no (?!(?:{_COMPARES})\b)\w+|\bthere is no such\b", re.IGNORECASE)


def test_documents_and_messages_are_in_plain_english() -> None:
    folders = [ROOT / "src" / "stepscope", ROOT / "docs", ROOT / "page" / "src"]
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*"))]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if path.suffix in {".py", ".md", ".c", ".h", ".cpp", ".ts", ".tsx"} and "bundle" not in path.parts
        for match in _NOT_PLAIN.finditer(
            " ".join(re.sub(r"^\W+", "", line) for line in path.read_text(encoding="utf-8").splitlines())
        )
    ]
    assert not found, "\n".join(found)
