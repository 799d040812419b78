"""One pair: two processes that train in turns of some 20 ms, A B B A; who waits stands still, children included."""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import psutil

from stepscope.analyse.quantities import count_text
from stepscope.comparison.levels import Floats, RunLevel, in_turns, level_of, own_times
from stepscope.comparison.turns.programs import ProgramInTurns
from stepscope.errors import UsageError

#: Length of a turn; that of programs with children, whose buffers fill while their parent trains; and on a device,
#: which drains at the end of a turn.
_SLICE_NS, _SLICE_WITH_CHILDREN_NS, _SLICE_OF_DEVICE_NS = 20_000_000, 100_000_000, 200_000_000
#: A side has enough steps from this number on, of which the first are its warm-up.
_ENOUGH, _LEAST = 100, 30
#: The quantile of the own times of a turn that is its level, and the part of the turns that warm up.
_QUANTILE, _WARM_PART = 0.25, 10
#: Most steps of a program with children that count as one.
_MOST_TOGETHER = 10
#: After so many times the wanted time a pair ends with the least number of steps.
_LONGEST = 10
#: Seconds until the first step, and until a turn ends, at most.
_PATIENCE = 900.0
#: Seconds between looks for children outside the process group.
_CHILDREN_EVERY = 1.0
#: Seconds that processes have to end by themselves.
_TO_END = 1.0
#: Lines of a program's output that an error quotes.
_QUOTED = 3
_PR_SET_PDEATHSIG = 1

#: Wall time, run-queue delay (None if the system does not say) and page faults of one step, ns.
_Row: TypeAlias = "tuple[int, int | None, int]"


@dataclass(frozen=True)
class PairPlan:
    """How a pair is measured.

    Attributes:
        seconds: Own time of the steps of each side: without waits for a core.
        one_core: Whether both train on one core, in turns the same one; else on all.
        environment: Variables of both programs.
    """

    seconds: float = 2.0
    one_core: bool = True
    environment: Mapping[str, str] | None = None


class _LiveSide:
    """One live program, with the socket through which it hands over.

    Attributes:
        turns: The steps of each turn.
        steps: How many there are in all turns.
        own_ns: Their own time.
        ended: Whether the program has ended.
        threads: How many threads it asks for; None if unknown.
        on_device: Whether a device works for it.
    """

    def __init__(self, program: ProgramInTurns, plan: PairPlan, scratch: Path, core: int | None) -> None:
        self.turns: list[list[_Row]] = []
        self.steps = 0
        self.own_ns = 0
        self.ended = False
        self.threads: int | None = None
        self.on_device = False
        self._program = program
        self._buffer = b""
        self._connection: socket.socket | None = None
        self._children: list[int] = []
        self._looked = 0.0
        self._log = scratch / "output"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(scratch / "turns"))
        self._listener.listen(64)
        cores = sorted(os.sched_getaffinity(0))
        said = {"socket": str(scratch / "turns"), "cores": cores if core is not None else None}
        # The options only make the start-up hook look; the variable of turns comes first there.
        ours = {"STEPSCOPE_OPTIONS": '{"start": false}', "STEPSCOPE_TURNS": json.dumps(said)}
        environment = {**os.environ, **(plan.environment or {}), **program.environment, **ours}
        with self._log.open("wb") as log:
            self._process = _start(program, environment, log, core)

    def wait_until_ready(self) -> None:
        """Wait for the first steps, and let the program stand still.

        Raises:
            UsageError: It ended, or took no step in time.
        """
        deadline = time.monotonic() + _PATIENCE
        while not select.select([self._listener], [], [], 0.1)[0]:
            if self._process.poll() is not None:
                what = f"ended with exit code {self._process.returncode} before its first steps"
                raise UsageError(*self._quoted(what))
            if time.monotonic() > deadline:
                raise UsageError(*self._quoted("took no training step that stepscope saw"))
        self._connection = self._listener.accept()[0]
        self._listener.close()  # a process that comes later runs on without turns
        self._receive()
        self.stop()

    def turn(self, cores: list[int] | None) -> None:
        """Let the program train for a turn; its times are added to ``turns``."""
        assert self._connection is not None  # noqa: S101 - it is ready
        told = {"slice_ns": self._slice_ns(), "cores": cores}
        self._signal(signal.SIGCONT)
        try:
            self._connection.sendall(json.dumps(told).encode() + b"\n")
        except OSError:
            self.ended = True
            return
        self._receive()
        if not self.ended:
            self.stop()

    def stop(self) -> None:
        """Let the program and its children stand still."""
        now = time.monotonic()
        if now - self._looked > _CHILDREN_EVERY:
            self._looked, self._children = now, _descendants(self._process)
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the program with its children."""
        _end(self._process)
        for each in (self._connection, self._listener):
            if each is not None:
                each.close()

    def level(self) -> RunLevel:
        """Return the level of the steps.

        Raises:
            UsageError: There are too few.
        """
        if self.steps < _LEAST:
            raise UsageError(*self._quoted(f"ended after {count_text(self.steps, 'step')}; {_LEAST} are needed"))
        count = self.steps // self._together * self._together
        rows = [row for turn in self.turns for row in turn]
        found = level_of(*(column.reshape(-1, self._together).mean(axis=1) for column in _columns(rows[:count])))
        assert found is not None  # noqa: S101 - there are steps
        return found

    def turn_levels(self) -> list[float]:
        """Return how long a step took in each turn, as the natural logarithm of ns; NaN for a turn without a step.

        The lower quartile of its own times; of a program with children their mean, because a long step precedes short
        ones.
        """
        found = [math.nan] * len(self.turns)
        for number, turn in enumerate(self.turns):
            if turn:
                wall, delay, _ = _columns(turn)
                own = own_times(wall, np.nan_to_num(delay))
                level = float(own.mean() if self._children else np.quantile(own, _QUANTILE))
                found[number] = math.log(level) if level > 0 else math.nan
        return found

    @property
    def enough(self) -> int:
        """How many steps are enough."""
        return max(_ENOUGH, _ENOUGH // 3 * self._together)

    @property
    def _together(self) -> int:
        """Steps that count as one: workers of a loader finish together, so that a long step precedes short ones."""
        return min(2 * len(self._children), _MOST_TOGETHER) or 1

    def _slice_ns(self) -> int:
        if self.on_device:
            return _SLICE_OF_DEVICE_NS
        return _SLICE_WITH_CHILDREN_NS if self._children else _SLICE_NS

    def _receive(self) -> None:
        """Take what the program says when it hands over."""
        assert self._connection is not None  # noqa: S101 - it is ready
        deadline = time.monotonic() + _PATIENCE
        while b"\n" not in self._buffer:
            ready = select.select([self._connection], [], [], max(deadline - time.monotonic(), 0))[0]
            try:
                piece = self._connection.recv(1 << 16) if ready else b""
            except OSError:
                piece = b""
            if not piece:
                if not ready:
                    raise UsageError(*self._quoted("has not ended a step for 15 minutes"))
                self.ended = True
                return
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        self.turns.append([tuple(row) for row in said["rows"]])
        self.steps += len(said["rows"])
        self.own_ns += sum(wall - (delay or 0) for wall, delay, _ in said["rows"])
        self.threads, self.on_device = said.get("threads"), bool(said.get("device"))

    def _signal(self, number: signal.Signals) -> None:
        _signal_all(self._process, self._children, number)

    def _quoted(self, what: str) -> tuple[str, str]:
        """Return the message of an error, with the end of the program's output, and its remedy."""
        with suppress(OSError):
            text = self._log.read_text(errors="replace").strip().splitlines()[-_QUOTED:]
            what += f" ({' / '.join(text)})" if text else ""
        remedy = "Its Python needs stepscope, and its optimizer must step; programs that end soon need more steps."
        return f"{self._program.command}: the program {what}.", remedy


def _columns(rows: Sequence[_Row]) -> Iterator[Floats]:
    """Yield wall times, run-queue delays and page faults; NaN for unknown."""
    for column in zip(*rows, strict=True):
        yield np.array([np.nan if value is None else value for value in column], np.float64)


class _Before:
    """What the new process does before the program: end with its parent, and train on one core.

    Args:
        core: The core; None for all.
    """

    def __init__(self, core: int | None) -> None:
        self._core = core
        self._libc = ctypes.CDLL(None)

    def __call__(self) -> None:
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})


def _simple(command: str) -> bool:
    """Return whether a shell has nothing to do but to run one program."""
    return not set(command) & set("&|;<>()$`\n=")


def _start(
    program: ProgramInTurns, environment: Mapping[str, str], output: IO[bytes] | int, core: int | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the user's own command
        ["/bin/sh", "-c", f"exec {program.command}" if _simple(program.command) else program.command],
        cwd=program.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=_Before(core),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    children = _descendants(process)
    for number in (signal.SIGTERM, signal.SIGCONT):
        _signal_all(process, children, number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_TO_END)
    _signal_all(process, children, signal.SIGKILL)
    process.wait()


def _signal_all(process: subprocess.Popen[bytes], children: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to the process group of a program, and to those of its children that have left the group."""
    with suppress(OSError):
        os.killpg(process.pid, number)
    for child in children:
        with suppress(OSError):
            if os.getpgid(child) != process.pid:
                os.kill(child, number)


def _descendants(process: subprocess.Popen[bytes]) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    except psutil.Error:
        return []


@contextmanager
def started(program: ProgramInTurns, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Let a program run by itself, without its output; it ends with the block, children included."""
    process = _start(program, environment, subprocess.DEVNULL, None)
    try:
        yield process
    finally:
        _end(process)


def measure_pair(a: ProgramInTurns, b: ProgramInTurns, plan: PairPlan) -> tuple[RunLevel, RunLevel]:
    """Let two programs train in turns, and return the level of each.

    Raises:
        UsageError: One of them ended too soon.
    """
    cores = sorted(os.sched_getaffinity(0))
    apart = [cores[0], cores[-1]] if plan.one_core else [None, None]  # while they start
    with tempfile.TemporaryDirectory(prefix="stepscope-") as scratch:
        sides: list[_LiveSide] = []
        try:
            for number, program in enumerate((a, b)):
                place = Path(scratch) / str(number)
                place.mkdir()
                sides.append(_LiveSide(program, plan, place, apart[number]))
            for side in sides:
                side.wait_until_ready()
            threads = max(side.threads or 1 for side in sides)
            _take_turns(sides, plan, _measured_on(cores, threads) if plan.one_core else None)
            return _levels(*sides)
        finally:
            for side in sides:
                side.end()


def _levels(a: _LiveSide, b: _LiveSide) -> tuple[RunLevel, RunLevel]:
    """Return the levels of both sides, as far apart as their turns say once they are warm."""
    turns = list(zip(a.turn_levels(), b.turn_levels(), strict=False))
    return in_turns(
        a.level(), b.level(), [turn for turn in turns[len(turns) // _WARM_PART :] if np.isfinite(turn).all()]
    )


def _measured_on(cores: list[int], threads: int) -> list[int]:
    """Return the core that is least busy; all where the program asks for several threads."""
    if threads > 1 or len(cores) == 1:
        return cores
    before = _busy()
    time.sleep(0.2)
    after = _busy()
    return [min(cores, key=lambda core: after.get(core, 0.0) - before.get(core, 0.0))]


def _busy() -> dict[int, float]:
    times = psutil.cpu_times(percpu=True)
    return {core: sum(each) - each.idle - getattr(each, "iowait", 0.0) for core, each in enumerate(times)}


def _take_turns(sides: list[_LiveSide], plan: PairPlan, cores: list[int] | None) -> None:
    """Take turns until both have enough steps, or one has ended."""
    begun, number, wanted = time.monotonic(), 0, plan.seconds * 1e9
    while not any(side.ended for side in sides):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.turn(cores if number == 0 else None)
        number += 1
        late = time.monotonic() - begun > 2 * _LONGEST * plan.seconds
        if all(side.steps >= (_LEAST if late else side.enough) and (late or side.own_ns >= wanted) for side in sides):
            return
