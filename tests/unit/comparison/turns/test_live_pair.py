"""Two live programs: who waits stands still with its children, and none is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from stepscope.comparison.turns.live_pair import PairPlan, measure_pair
from stepscope.comparison.turns.programs import ProgramInTurns
from stepscope.errors import UsageError

PLAN = PairPlan(seconds=0.01)


def program(command: str) -> ProgramInTurns:
    return ProgramInTurns(command, Path.cwd(), "x")


def intervals(path: Path) -> list[tuple[int, int]]:
    """When the program had its turns."""
    lines = [line.split() for line in path.read_text().splitlines()]
    goes = [int(at) for what, at in lines if what == "goes"]
    waits = [int(at) for what, at in lines if what == "waits"]
    return list(zip(goes, [at for at in waits if at > goes[0]], strict=False))


def test_each_side_has_its_own_times_and_no_turn_overlaps_another(command: Callable[..., str], tmp_path: Path) -> None:
    a, b = measure_pair(program(command(1_000_000, saw="a")), program(command(2_000_000, saw="b")), PLAN)
    assert math.exp(a.level) == pytest.approx(1_000_000, rel=0.001)
    assert math.exp(b.level) == pytest.approx(2_000_000, rel=0.001)
    turns = sorted((*intervals(tmp_path / "a"), *intervals(tmp_path / "b")))
    assert len(turns) >= 6
    assert all(end <= start for (_, end), (start, _) in pairwise(turns))


def test_children_stand_still_while_their_parent_waits(command: Callable[..., str], tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"  # of a child in a session of its own
    child = f'import time\nwhile True:\n open("{stamps}", "a").write(f"{{time.monotonic_ns()}} ")\n time.sleep(0.001)'
    measure_pair(
        program(command(1_000_000, saw="a", child=(child, stamps))), program(command(1_000_000, saw="b")), PLAN
    )
    written = [int(each) for each in stamps.read_text().split()]
    of_the_other = [at for at in written for start, end in intervals(tmp_path / "b") if start < at < end]
    assert len(intervals(tmp_path / "b")) >= 3
    assert len(of_the_other) <= 2, "a signal may arrive late"


def test_no_process_is_left(command: Callable[..., str]) -> None:
    before = set(psutil.Process().children(recursive=True))
    child = "import time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    measure_pair(program(command(1_000_000, child=(child, Path("/")))), program(command(1_000_000)), PLAN)
    after = set(psutil.Process().children(recursive=True)) - before
    left = [each for each in after if each.status() != psutil.STATUS_ZOMBIE]
    assert not left


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo broken >&2; exit 3", "ended with exit code 3 before its first steps (broken)"),
        (None, "ended after 20 steps; 30 are needed"),
    ],
)
def test_a_program_that_cannot_be_measured_is_named_with_its_output(
    command: Callable[..., str], text: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match="the program") as caught:
        measure_pair(program(text or command(1_000_000, steps=20)), program(command(1_000_000)), PLAN)
    assert said in str(caught.value)
