"""What the ranks of a job do: operations on lanes, in the order of the program, and where ranks meet.

Ranks that run the same program share one plan; each operation holds an array with one value for every rank.
Times are nanoseconds on the true clock, as real numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

#: From the end of a launch until an idle device starts the kernel.
LAUNCH_LATENCY = 3_000.0
#: From the end of a kernel until the next one of its stream, or one that waits for it, starts.
DEVICE_GAP = 1_000.0


@dataclass(frozen=True)
class Inner:
    """An event within an operation of the host, from one fraction of it to another."""

    name: str
    category: str
    low: float
    high: float
    arguments: str = ""


@dataclass(frozen=True)
class Place:
    """Where in the training an operation belongs.

    Attributes:
        step: Number of the step, from 0.
        phase: data, forward, backward, optimizer or other.
        module: Path of the module; empty for none.
        operator: The operator of the host.
        sort: What kind of work it is.
    """

    step: int
    phase: str
    module: str = ""
    operator: str = ""
    sort: str = ""


@dataclass(frozen=True)
class Meeting:
    """One operation's part in an exchange: which of the exchange's groups each rank of the plan belongs to.

    Attributes:
        exchange: Number of the exchange in the job.
        group: Index of the group, of each rank.
    """

    exchange: int
    group: Integers


@dataclass
class Op:
    """One operation of all ranks of a plan.

    Attributes:
        lane: ``main``, ``backward``, a thread of gloo, or the number of a stream.
        duration: Its own time on each rank; a collective has none but the ranks' jitter at its end.
        after: Operations that end before it starts, and how long before.
        until: Operation that ends before it ends; −1 for none.
        category: As Kineto writes it; empty for time that leaves no event.
        launched_by: The operation of the host that launched it; −1 on the host.
        batched: Whether it is a batch of messages, of which PyTorch says nothing on the kernel.
        meetings: Where it waits for other ranks.
    """

    name: str
    category: str
    lane: str
    duration: Floats
    after: list[tuple[int, float]]
    place: Place
    until: int = -1
    arguments: str = ""
    inner: tuple[Inner, ...] = ()
    launched_by: int = -1
    meetings: tuple[Meeting, ...] = ()
    batched: bool = False


@dataclass(frozen=True)
class Group:
    """Ranks that communicate.

    Attributes:
        kind: WORLD, DP, TP, PP, EP.
        name: Its name in the process groups of PyTorch.
        description: Its description there.
        ranks: Its members, in order.
    """

    kind: str
    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass
class Exchange:
    """One collective, or one message, in each of several groups that do not share a rank.

    Attributes:
        operation: As PyTorch calls it: ``allreduce``, ``send``, …
        groups: The process group of each.
        members: The ranks that take part in each; of a message, source and destination.
        bytes: What each rank gives.
        transit: Time from the last arrival to the end, of each.
        parts: How many operations of plans take part.
    """

    operation: str
    groups: Sequence[Group]
    members: Sequence[tuple[int, ...]]
    bytes: int
    transit: Floats
    place: Place
    parts: int = 0


@dataclass(frozen=True)
class Range:
    """An annotation around operations of one thread of the host."""

    name: str
    first: int
    last: int
    category: str = "user_annotation"


@dataclass(frozen=True)
class Noise:
    """How healthy ranks differ.

    Attributes:
        ranks: Standard deviation of the speed of devices.
        kernels: Of the duration of a kernel, from call to call.
        hosts: Of the speed of hosts.
        calls: Of the duration of a call of the host.
        batches: Of the size of the batch that a rank gets in a step.
        loaders: Of the time that a batch takes to load.
        jitter_ns: Of the ends of a collective.
    """

    ranks: float = 0.008
    kernels: float = 0.015
    hosts: float = 0.03
    calls: float = 0.12
    batches: float = 0.01
    loaders: float = 0.2
    jitter_ns: float = 2_000.0


@dataclass
class Plan:
    """The program of ranks that all do the same.

    Args:
        ranks: Their numbers in the job.
        noise: How they differ.
        rng: Where the differences come from.
        device: Whether they have a device; else operators compute on the host.
    """

    ranks: Integers
    noise: Noise
    rng: np.random.Generator
    device: bool = True
    queue: int = 1_024
    ops: list[Op] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.ranks)
        self.speed = np.maximum(self.rng.normal(1.0, self.noise.ranks, count), 0.9)
        self.host_speed = np.maximum(self.rng.normal(1.0, self.noise.hosts, count), 0.85)
        #: Size of the current batch, of each rank.
        self.batch = np.ones(count)
        self.thread = "main"
        self.step, self.phase, self.module = 0, "other", ""
        self._host = -1
        self._streams: dict[str, int] = {}
        self._awaited: dict[str, list[int]] = {}
        self._launched: list[int] = []

    def varied(self, nominal: float, sigma: float) -> Floats:
        """Return a duration for each rank around a nominal one."""
        return nominal * np.exp(self.rng.normal(0.0, sigma, len(self.ranks)))

    def place(self, operator: str = "", sort: str = "") -> Place:
        """Return where in the training the next operation belongs."""
        return Place(self.step, self.phase, self.module, operator, sort)

    def add(self, op: Op) -> int:
        """Add an operation, and return its number."""
        self.ops.append(op)
        return len(self.ops) - 1

    def host(self, name: str, nominal: float, *, category: str = "cpu_op", sort: str = "host", until: int = -1) -> int:
        """Add an operation of the host's current thread; it ends no sooner than ``until``."""
        duration = self.varied(nominal, self.noise.calls) * self.host_speed
        after = [(self._host, 0.0)] if self._host >= 0 else []
        op = Op(name, category, self.thread, duration, after, self.place(name, sort), until)
        self._host = self.add(op)
        return self._host

    def call(self, name: str, nominal: float, inner: tuple[Inner, ...] = (), arguments: str = "") -> int:
        """Add an operator with events in it, which may launch something."""
        number = self.host(name, nominal)
        self.ops[number].inner, self.ops[number].arguments = inner, arguments
        return number

    def on_stream(self, op: Op, stream: str) -> int:
        """Put an operation that the last one of the host launched on a stream."""
        op.launched_by = self._host
        op.after = [(self._host, LAUNCH_LATENCY)]
        op.after += [(number, DEVICE_GAP) for number in self._awaited.pop(stream, ())]
        if stream in self._streams:
            op.after.append((self._streams[stream], DEVICE_GAP))
        number = self.add(op)
        self._streams[stream] = number
        self._launched.append(number)
        if len(self._launched) > self.queue:
            self.ops[self._host].until = self._launched[-self.queue - 1]
        return number

    def wait(self, stream: str, number: int) -> None:
        """Let the next operation on the stream start after an operation has ended."""
        self._awaited.setdefault(stream, []).append(number)

    def last_on(self, stream: str) -> int:
        """Return the last operation on a stream; −1 if it has none."""
        return self._streams.get(stream, -1)

    @property
    def last_call(self) -> int:
        """The last operation of the host."""
        return self._host

    @contextmanager
    def annotated(self, name: str, category: str = "user_annotation") -> Iterator[None]:
        """Annotate what the host does meanwhile."""
        first = len(self.ops)
        yield
        self.ranges.append(Range(name, first, self._host, category))
