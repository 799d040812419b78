"""What all tests share: their size, Hypothesis's settings, the captures, and traces that a test writes."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests import sizes

#: Writes a trace of events, and further top-level keys, and returns its path.
WriteTrace: TypeAlias = Callable[..., Path]

#: A test that takes longer carries the marker ``slow``; in seconds.
LONG = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size", choices=sizes.CHOICES, default="quick", help="how much the tests do (tests/sizes.py)")


def pytest_configure(config: pytest.Config) -> None:
    # What a shell runs in its background ignores Ctrl-C, and under nohup a hangup; so would the programs of the tests.
    # A signal with a handler, which may do nothing, has its usual effect in them.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    sizes.SIZE.full = config.getoption("size") != "quick"
    if find_spec("hypothesis"):  # an environment made for `make gpu-check` does not have it
        _load_profile()


def _load_profile() -> None:
    """Make Hypothesis deterministic, and let it ignore how fast the machine is."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "stepscope",
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=sizes.SIZE.examples(sizes.EXAMPLES),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("stepscope")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests when quick, and when the rest is asked for, the tests that quick runs in full."""
    if (size := config.getoption("size")) != "full":
        chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            chosen[_is_slow(item) or _is_sized(item) if size == "rest" else not _is_slow(item)].append(item)
        config.hook.pytest_deselected(items=chosen[False])
        items[:] = chosen[True]


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _is_sized(item: pytest.Item) -> bool:
    """Return whether the test does less when quick."""
    function = getattr(item, "obj", None)
    return "size" in getattr(item, "fixturenames", ()) or getattr(function, "is_hypothesis_test", False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that took long and are not marked."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            if report.when == "call" and report.duration > LONG and "slow" not in report.keywords:
                terminalreporter.write_line(f"{report.nodeid} took {report.duration:.1f} s and is not marked slow")


@pytest.fixture(scope="session")
def size() -> sizes.Size:
    """How much the test does; the test does less when quick."""
    return sizes.SIZE


def files_in(directory: Path) -> list[Path]:
    """Return all files below a directory, in order; those of a file are itself."""
    if not directory.is_dir():
        return [directory]
    return sorted(path for path in directory.rglob("[!.]*") if path.is_file())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real captures beside the checkout; skips where it is absent, fails where CI promises it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        reason = f"the real captures are not at {folder}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    """Write a small trace the way Kineto does: events whose first key is ``ph``, among the document's other keys."""

    def write(events: Sequence[Mapping[str, Any]], /, name: str = "trace.json", **document: Any) -> Path:
        path = tmp_path / name
        text = json.dumps({"schemaVersion": 1, **document, "traceEvents": [{"ph": "X", **event} for event in events]})
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    return write
