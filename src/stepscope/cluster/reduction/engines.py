"""Where the ranks of a job are reduced: here, in processes of this machine, or on the workers of a Dask cluster.

Every engine maps one function over the ranks and yields what it returns, bytes; of a rank whose worker was killed the
reason. The results are the same bit for bit, as a rank is reduced by itself.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any, TypeAlias, TypeVar

from stepscope.collect.own_process import own_command, own_environment
from stepscope.errors import UsageError

_Work = TypeVar("_Work")
#: Place of a piece of work, and what became of it: the result, or in one sentence why there is none.
Outcome: TypeAlias = "tuple[int, bytes | str]"

ENGINES = ("serial", "processes", "dask")
#: A process of our own needs 0.4 s to start: fewer ranks than these, of fewer bytes, are reduced here.
_FEW, _SMALL = 64, 64 << 20
#: How often a rank is tried whose worker was killed: another program may have taken the memory.
_TRIES = 2
_LENGTH = 8
#: Seconds without a result after which Dask is asked whether it has a worker left.
SILENCE_S = 20
#: Seconds within which Dask's scheduler must answer.
CONNECT_S = 10


@dataclass(frozen=True)
class Engine:
    """Where ranks are reduced.

    Attributes:
        name: One of :data:`ENGINES`; empty chooses by the number of ranks and their bytes.
        workers: Number of processes; None takes one for each core.
        scheduler: Address of Dask's scheduler, such as ``tcp://10.0.0.1:8786``.
    """

    name: str = ""
    workers: int | None = None
    scheduler: str | None = None

    def map(self, function: Callable[[_Work], bytes], works: Sequence[_Work], size: int = 0) -> Iterator[Outcome]:
        """Yield the result of each piece of work, in any order.

        Args:
            function: A function of a module: other processes import it.
            works: What it is called with; these can be pickled.
            size: Bytes that will be read.

        Raises:
            UsageError: The engine is unknown or cannot be reached.
        """
        cores = self.workers or len(os.sched_getaffinity(0))
        many = min(cores, len(works)) > 1 and (len(works) >= _FEW or size >= _SMALL)
        name = self.name or ("processes" if many else "serial")
        if name == "serial":
            return ((place, function(work)) for place, work in enumerate(works))
        if name == "processes":
            return _on_processes(function, works, max(1, min(cores, len(works))))
        if name == "dask":
            return _on_dask(function, works, self.scheduler)
        message = f"{name!r} is not an engine."
        raise UsageError(message, f"Known engines: {', '.join(ENGINES)}.")


def share(works: Sequence[_Work], shard: tuple[int, int]) -> list[_Work]:
    """Return the part of some work that is this shard's: every n-th piece from the i-th on.

    Args:
        works: All work, in an order that is the same for every shard.
        shard: Number of the shard, from 0, and how many there are.
    """
    number, count = shard
    return list(works[number::count])


def _on_processes(function: Callable[[_Work], bytes], works: Sequence[_Work], count: int) -> Iterator[Outcome]:
    pool = _Pool(count)
    with ThreadPoolExecutor(count) as threads:
        tasks = {threads.submit(pool.call, function, work): place for place, work in enumerate(works)}
        try:
            for task in as_completed(tasks):
                yield tasks[task], task.result()
        finally:
            for task in tasks:
                task.cancel()
            pool.end()


class _Pool:
    """Processes of our own, each started when it is needed; one that was killed is replaced."""

    def __init__(self, count: int) -> None:
        self._threads = max(1, len(os.sched_getaffinity(0)) // count)
        self._all: list[_WorkerProcess] = []
        self._idle: SimpleQueue[_WorkerProcess | None] = SimpleQueue()
        self._ended = False
        for _ in range(count):
            self._idle.put(None)

    def call(self, function: Callable[[_Work], bytes], work: _Work) -> bytes | str:
        """Return what the function returns in a process, or why the process was killed."""
        worker, fault = self._idle.get(), ""
        try:
            for _ in range(_TRIES):
                if self._ended:
                    break
                if worker is None:
                    worker = _WorkerProcess(self._threads)
                    self._all.append(worker)
                try:
                    return worker.call(function, work)
                except _ProcessEnded:
                    fault, worker = worker.end(), None
            return fault
        finally:
            self._idle.put(worker)

    def end(self) -> None:
        """End all processes, also those that are at work: nobody waits for their results any more."""
        self._ended = True
        for worker in self._all:
            worker.end(at_once=True)


class _ProcessEnded(Exception):
    """The process ended before it answered."""


class _WorkerProcess:
    """A process of our own that calls functions for us, until its input ends."""

    def __init__(self, threads: int) -> None:
        # Ranks are read side by side: more threads than cores would only wait for each other.
        limits = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        environment = own_environment(**limits)
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            own_command(__name__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def call(self, function: Callable[[_Work], bytes], work: _Work) -> bytes:
        """Return what the function returns there, or raise what it raises there.

        Raises:
            _ProcessEnded: The process was killed.
        """
        try:
            _send(self._process.stdin, (function, work))
            content = _received(self._process.stdout)
        except (EOFError, OSError, ValueError):  # its streams were closed
            raise _ProcessEnded from None
        result = pickle.loads(content)  # noqa: S301 - from a process of our own
        if isinstance(result, BaseException):
            raise result
        return bytes(result)

    def end(self, *, at_once: bool = False) -> str:
        """Wait for the end of the process, or kill it at once; return how it ended, in one sentence."""
        if at_once:
            self._process.kill()
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not sent cannot be sent any more
                stream.close()  # type: ignore[union-attr]
        cause = f"signal {-code}" if code < 0 else f"code {code}"
        memory = ": the machine may have run out of memory" if code == -signal.SIGKILL else ""
        return f"The process that read it was killed ({cause}{memory})."


def _send(stream: IO[bytes] | None, value: Any) -> None:  # noqa: ANN401 - anything that can be pickled
    content = pickle.dumps(value)
    if stream is not None:
        stream.write(len(content).to_bytes(_LENGTH, "little") + content)
        stream.flush()


def _received(stream: IO[bytes] | None) -> bytes:
    head = stream.read(_LENGTH) if stream is not None else b""
    content = stream.read(int.from_bytes(head, "little")) if stream is not None and len(head) == _LENGTH else b""
    if not content or len(content) < int.from_bytes(head, "little"):
        message = "the other process ended"
        raise EOFError(message)
    return content


def _serve() -> None:
    """Call functions for the process that started this one, until it closes our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    # What a reader prints goes to standard error: standard output carries the results.
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            content = _received(sys.stdin.buffer)
        except EOFError:
            return
        try:
            function, work = pickle.loads(content)  # noqa: S301 - from the process that started us
            result: Any = function(work)
        except Exception as error:  # noqa: BLE001 - it is raised in the process that asked
            result = error
        _send(results, result)


def _on_dask(function: Callable[[_Work], bytes], works: Sequence[_Work], scheduler: str | None) -> Iterator[Outcome]:
    try:
        from distributed import Client, wait
        from distributed.scheduler import KilledWorker
    except ImportError:
        message = "Dask is not installed."
        raise UsageError(message, "Install it: pip install 'stepscope[dask]'.") from None
    if scheduler is None:
        message = "The address of Dask's scheduler is missing."
        raise UsageError(message, "Name it: --scheduler tcp://HOST:8786.")
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"Dask's scheduler at {scheduler} cannot be reached: {error}."
        raise UsageError(message, "Start it (`dask scheduler`), or name another with --scheduler.") from None
    with client:
        left = {client.submit(function, work, pure=False): place for place, work in enumerate(works)}
        while left:
            try:
                with client.as_current():
                    done = wait(list(left), timeout=SILENCE_S, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                if client.scheduler_info(n_workers=-1)["workers"]:
                    continue
                # Tasks would wait for another worker for ever.
                yield from ((place, "No worker of Dask is left.") for place in left.values())
                return
            for task in done:
                place = left.pop(task)
                try:
                    yield place, task.result()
                except (KilledWorker, CancelledError) as error:
                    yield place, f"Dask lost the workers that read it ({type(error).__name__})."
                except Exception as error:  # noqa: BLE001
                    # The function reports its own errors, so that this one is of the way to it.
                    message = f"The workers of Dask cannot reduce a rank: {' '.join(str(error).split())}."
                    raise UsageError(message, "Install this version of stepscope where they run.") from None


if __name__ == "__main__":
    _serve()
