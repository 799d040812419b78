"""A plugin of pytest: limits on the time of a step, comparisons with another revision, and findings of a block.

::

    @pytest.mark.max_step_time("20 ms")
    def test_small_model(): train(steps=50)

    @pytest.mark.stepscope(against="main", fail_on="slower:5%")
    def test_not_slower(): train(steps=2000)

    def test_nothing_stands_out(stepscope):
        with stepscope.profile() as block:
            train(steps=10)
        assert not block.findings

pytest loads it with every session, so that it imports what it needs when a test asks for it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from stepscope.advise.finding import Finding
    from stepscope.collect.session.recorded import RecordedWindow
    from stepscope.comparison.comparison import Comparison
    from stepscope.comparison.gates import Outcome
    from stepscope.run import Run

#: Set in the processes that take turns: there the test is an ordinary one.
_COMPARED = "STEPSCOPE_COMPARED"
_TIME = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s)")
_NS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--stepscope-strict``."""
    group = parser.getgroup("stepscope")
    group.addoption("--stepscope-strict", action="store_true", help="fail a comparison that cannot tell, too")


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line(
        "markers",
        "stepscope(against, fail_on='slower:5%', pairs=(3, 5, 10), seconds=2.0): the steps of this test train in turns "
        "with those of another revision or command",
    )
    config.addinivalue_line("markers", "max_step_time(limit): the median step of this test takes no longer: '20 ms'")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Compare a marked test with its other revision instead of running it here."""
    marker = pyfuncitem.get_closest_marker("stepscope")
    if marker is None or os.environ.get(_COMPARED):
        return None
    _compare(pyfuncitem, *marker.args, **marker.kwargs)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Time the steps of a test with a limit."""
    marker = item.get_closest_marker("max_step_time")
    if marker is None or os.environ.get(_COMPARED):
        return (yield)
    from stepscope.collect.start.turns import StepTimer

    limit, timer = _ns(*marker.args, **marker.kwargs), StepTimer()
    timer.install()
    try:
        result = yield
    finally:
        timer.remove()
    _judge_steps(item, timer.rows, limit)
    return result


def _ns(limit: str) -> float:
    """Return a time such as ``20 ms`` in ns."""
    found = _TIME.fullmatch(limit.strip())
    if found is None:
        pytest.fail(f"max_step_time: {limit!r} is not a time; write one such as '20 ms'.", pytrace=False)
    return float(found["number"]) * _NS[found["unit"]]


def _judge_steps(item: pytest.Item, rows: list[tuple[int, int | None, int]], limit: float) -> None:
    """Fail a test whose median step, without waits for a core, takes longer than its limit."""
    from statistics import median

    from stepscope.analyse.quantities import duration_text

    late = rows[min(10, len(rows) // 2) :]
    if not late:
        pytest.fail("max_step_time: the test took no training step that stepscope saw.", pytrace=False)
    own = median(wall - (delay or 0) for wall, delay, _ in late)
    waited = sum(delay or 0 for _, delay, _ in late) / sum(wall for wall, _, _ in late)
    item.user_properties += [("step_ns", round(own)), ("waited_for_a_core", round(waited, 3))]
    if own > limit:
        text = f"A step takes {duration_text(own)} (median of {len(late)}), more than {duration_text(limit)}."
        pytest.fail(f"{text} Waits for a core, {waited:.0%} of the time, do not count.", pytrace=False)


def _compare(
    item: pytest.Function,
    against: str,
    fail_on: str = "slower:5%",
    pairs: tuple[int, ...] = (3, 5, 10),
    seconds: float = 2.0,
) -> None:
    if hasattr(item.config, "workerinput"):
        pytest.fail("A comparison needs the machine for itself: run it without pytest-xdist.", pytrace=False)
    from stepscope.comparison.gates import FAILED, UNSURE, parse_gates
    from stepscope.comparison.turns.live_pair import PairPlan
    from stepscope.comparison.turns.looks import TurnsPlan, compare_in_turns, devices_here
    from stepscope.comparison.turns.programs import two_programs
    from stepscope.comparison.wording import headline
    from stepscope.errors import StepscopeError

    try:
        gates = parse_gates(fail_on)
        limit = min((gate.limit for gate in gates if gate.about == "slower"), default=0.05)
        plan = TurnsPlan(pairs, limit, PairPlan(seconds, one_core=not devices_here()))
        with two_programs(_command(item), against, Path(item.config.rootpath)) as (a, b):
            found = compare_in_turns(a, b, plan)
        outcomes = found.judge(gates)
    except StepscopeError as error:
        pytest.fail(str(error), pytrace=False)
    item.user_properties += _properties(found, outcomes)
    said = "\n".join([headline(found), *found.notes, *(f"{one.rule} {one.outcome}: {one.why}" for one in outcomes)])
    unsure = [one for one in outcomes if one.outcome == UNSURE]
    if any(one.outcome == FAILED for one in outcomes) or (unsure and item.config.getoption("--stepscope-strict")):
        pytest.fail(said, pytrace=False)
    if unsure:
        warnings.warn(pytest.PytestWarning(said), stacklevel=2)


def _command(item: pytest.Function) -> str:
    """Return the command that runs one test by itself."""
    name = item.config.pluginmanager.get_name(sys.modules[__name__])
    plugin = [] if name == "stepscope" else ["-p", __name__]  # not installed as one, so it was named
    words = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", item.nodeid]
    return f"{_COMPARED}=1 exec {shlex.join(words)}"


def _properties(found: Comparison, outcomes: list[Outcome]) -> list[tuple[str, object]]:
    """Return the figures that a report in JUnit's format gets."""
    step = found.step
    figures = [("verdict", found.verdict), *((f"gate {one.rule}", one.outcome) for one in outcomes)]
    if step is None or step.low is None or step.high is None:
        return [*figures]
    return [*figures, ("change", step.change), ("low", step.low), ("high", step.high), ("pairs", step.runs[0])]


class ProfiledBlock:
    """A block of a test that was profiled; ask it after the block."""

    def __init__(self) -> None:
        self.recorded: list[RecordedWindow] = []

    @property
    def run(self) -> Run:
        """The run.

        Raises:
            UsageError: Nothing was recorded.
        """
        from stepscope.errors import UsageError

        if not self.recorded:
            message = "Nothing was recorded in this block."
            raise UsageError(message, "Import the framework before it, and ask after the block.")
        return self.recorded[-1].open()

    @property
    def findings(self) -> list[Finding]:
        """What of the program makes its steps slow, the most important first; not what others do on the machine."""
        from stepscope.advise.finding import OF_THE_MACHINE
        from stepscope.advise.run_findings import findings

        return [finding for finding in findings(self.run) if finding.cause != OF_THE_MACHINE]


class BlockProfiler:
    """Profiles blocks of a test.

    Args:
        directory: Where the runs are made.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def profile(self, **options: Any) -> Iterator[ProfiledBlock]:  # noqa: ANN401 - those of `stepscope.profile`
        """Profile a block; its options are those of :func:`stepscope.profile`, with shapes and memory by default."""
        from stepscope.collect.start.profile import profile

        block = ProfiledBlock()
        ours = {"output": self._directory, "analyse": "later", "quiet": True}
        with profile(**{"record_shapes": True, "profile_memory": True, **options, **ours}) as recording:
            yield block
        block.recorded = recording.recorded


@pytest.fixture(name="stepscope")
def profiled_blocks(tmp_path: Path) -> BlockProfiler:
    """Profile blocks of this test: ``with stepscope.profile() as block: …``, then ``block.findings``."""
    return BlockProfiler(tmp_path / "stepscope-runs")
