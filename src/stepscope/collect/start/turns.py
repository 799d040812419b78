"""Two programs that take turns: this is the side of the program, in its process.

``stepscope compare --turns`` starts two programs with the variable ``STEPSCOPE_TURNS``. Each times its steps and hands
over to the other at the end of one: it sends its times through a socket and waits until it may go on. Meanwhile the
process that started it stops it and its children by a signal. Nothing is recorded.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.steps import StepHooks, Stepped, StepsSeen, make_hooks

#: Steps in which the rule is learnt that tells steps from steps of optimizers.
LEARN = 5
#: A reading of the scheduler belongs to a time if both were taken within this, ns; else it is read again.
_TOGETHER_NS, _ATTEMPTS = 10_000, 3

#: Wall time, run-queue delay (None if the system does not say) and page faults without a disk of one step, ns.
StepRow: TypeAlias = "tuple[int, int | None, int]"
#: Time of ``time.perf_counter_ns``; run-queue delay and page faults of the thread so far.
Reading: TypeAlias = "tuple[int, int | None, int]"

_OF_THE_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class StepTimer:
    """Times the steps of this program, found as ``stepscope run`` finds them.

    Attributes:
        rows: Wall time, run-queue delay and page faults of each step.
    """

    def __init__(self) -> None:
        self.rows: list[StepRow] = []
        self.seen = StepsSeen()
        self._process = os.getpid()
        self._hooks: list[StepHooks] = []
        self._withdraw: list[Callable[[], None]] = []
        self._last: Reading | None = None
        self._schedstat = -1

    def install(self) -> None:
        """Wait for the frameworks, and watch those that are imported."""
        for framework in FRAMEWORKS:
            self._withdraw.append(
                when_imported(framework, partial(self._imported, framework, framework in sys.modules))
            )

    def remove(self) -> None:
        """Remove all hooks."""
        for withdraw in self._withdraw:
            withdraw()
        while self._hooks:
            self._hooks.pop().remove()
        self._close()

    def _imported(self, framework: str, late: bool) -> None:  # noqa: FBT001 - an argument of `partial`
        hooks = make_hooks(framework, self._stepped)
        self._hooks.append(hooks)
        hooks.install(late=late)

    def _stepped(self, stepped: Stepped) -> None:
        if os.getpid() == self._process and self.seen.add(stepped, learning=self.seen.finder.number < LEARN):
            self._step_ended(stepped)

    def _step_ended(self, stepped: Stepped) -> None:
        """A step has ended, on the thread that trains."""
        self._last = self._note(stepped)

    def _note(self, stepped: Stepped) -> Reading:
        """Add the step that has ended, and return the reading at its end."""
        now = self._read()
        end = stepped.at_ns or now[0]
        if self._last is not None:
            delay = None if now[1] is None or self._last[1] is None else now[1] - self._last[1]
            self.rows.append((end - self._last[0], delay, now[2] - self._last[2]))
        return end, now[1], now[2]

    def _read(self) -> Reading:
        """Return the time, the thread's run-queue delay so far, and its page faults so far."""
        if self._schedstat < 0:
            with suppress(OSError):
                self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        now, delay = time.perf_counter_ns(), None
        if self._schedstat >= 0:
            line = b""
            for _ in range(_ATTEMPTS):
                before = now
                line = os.pread(self._schedstat, 80, 0)
                now = time.perf_counter_ns()
                if now - before < _TOGETHER_NS:
                    break
            delay = int(line.split()[1])
        faults = resource.getrusage(_OF_THE_THREAD).ru_minflt if _OF_THE_THREAD is not None else 0
        return now, delay, faults

    def _close(self) -> None:
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1


class TurnTaker(StepTimer):
    """Times the steps of this program, and hands over at the end of one when its turn is over.

    Args:
        path: Path of the socket.
        cores: Cores that children of this process may use; None for those of the process.
    """

    def __init__(self, path: str, cores: Iterable[int] | None = None) -> None:
        super().__init__()
        self._path = path
        self._socket: socket.socket | None = None
        self._ended = False
        self._turn_ends = 0
        if cores is not None:
            os.register_at_fork(after_in_child=partial(_use_cores, frozenset(cores)))

    def _step_ended(self, stepped: Stepped) -> None:
        if self._ended:
            return
        try:
            if self._socket is None:
                if self.seen.finder.number < LEARN:
                    return
                self._connect()
            else:
                self._last = self._note(stepped)
                if self._last[0] < self._turn_ends:
                    return
            self._hand_over()
            # A step that was reported late has begun already: of the next one, the beginning is not known.
            self._last = None if stepped.late or self._ended else self._read()
        except OSError:  # the other end is gone: the program goes on alone
            self._end()

    def _end(self) -> None:
        self._ended = True
        if self._socket is not None:
            self._socket.close()
        self._close()

    def _connect(self) -> None:
        """Connect to the other end.

        Raises:
            OSError: It is not there, or another rank of this job speaks for the program.
        """
        if find_job_rank().rank != 0:
            raise ConnectionRefusedError
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(self._path)
        self._socket.set_inheritable(False)

    def _hand_over(self) -> None:
        """Send the times of this turn, and wait for the next one."""
        assert self._socket is not None  # noqa: S101 - `_connect` comes first
        on_device = _synchronise()
        if on_device and self.rows:
            self.rows = self._evenly()
        said = {"process": self._process, "rows": self.rows, "device": on_device, "threads": _threads()}
        self._socket.sendall(json.dumps(said).encode() + b"\n")
        self.rows = []
        answer = b""
        while not answer.endswith(b"\n"):
            piece = self._socket.recv(4096)
            if not piece:
                self._end()
                return
            answer += piece
        told: dict[str, Any] = json.loads(answer)
        if told.get("cores"):
            _move(frozenset(told["cores"]))
        self._turn_ends = time.perf_counter_ns() + int(told["slice_ns"])

    def _evenly(self) -> list[StepRow]:
        """Share the turn among its steps: a step asks the device for work, and the end of the turn waits for all of it.

        Without this the steps would be as short as their requests, and the last one would carry the others' work.
        """
        rest = time.perf_counter_ns() - self._last[0] if self._last is not None else 0
        count = len(self.rows)
        wall, faults = sum(row[0] for row in self.rows) + rest, sum(row[2] for row in self.rows)
        delays = [row[1] for row in self.rows if row[1] is not None]
        return [(wall // count, sum(delays) // count if delays else None, faults // count)] * count


def _use_cores(cores: frozenset[int]) -> None:
    with suppress(OSError):
        os.sched_setaffinity(0, cores)


def _move(cores: frozenset[int]) -> None:
    """Let every thread of this process run on these cores."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(task.name), cores)


def _synchronise() -> bool:
    """Wait for the device, and return whether there is one at work."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    cuda.synchronize()
    return True


def _threads() -> int | None:
    """Return with how many threads the program computes, where it says."""
    ask: Callable[[], int] | None = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return ask() if ask is not None else None


def begin() -> None:
    """Take turns, as the variable says: the socket's path, and the cores that children may use, as JSON."""
    said = json.loads(os.environ["STEPSCOPE_TURNS"])
    TurnTaker(said["socket"], said.get("cores")).install()
