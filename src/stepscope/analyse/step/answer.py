"""The answer in a few numbers: what the printed summary shows.

Every time is in integer nanoseconds, every share a fraction of the steps' time between 0 and 1 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.trace.losses import Loss


@dataclass(frozen=True)
class Steps:
    """How many steps, and how long they took.

    Attributes:
        count: Number of steps; 0 where the trace has none, and the times below are those of its whole range.
        total_ns: Sum of the steps' durations.
        mean_ns: Mean duration.
        p50_ns: Median duration.
        p95_ns: The duration that 95 % of the steps do not exceed (linear interpolation).
        shortest_ns: Shortest duration.
        longest_ns: Longest duration.
        per_second: Steps per second of step time; 0 where there are none.
        inferred: Whether the steps were inferred rather than declared by the program.
    """

    count: int
    total_ns: int
    mean_ns: float
    p50_ns: float
    p95_ns: float
    shortest_ns: int
    longest_ns: int
    per_second: float
    inferred: bool


@dataclass(frozen=True)
class Part:
    """One part of the steps' time; the parts are disjoint and their sum is the steps' total.

    Attributes:
        name: ``computing``, ``communication``, ``copy``, ``data wait``, ``host only`` or ``idle``.
        total_ns: Time over all steps.
        mean_ns: Time in the mean step.
        share: Fraction of the steps' time.
    """

    name: str
    total_ns: int
    mean_ns: float
    share: float


@dataclass(frozen=True)
class Entry:
    """One operator or kernel among those that take most time.

    Attributes:
        name: Name.
        kind: Kind of its spans: operator, kernel, memcpy, memset or collective.
        total_ns: Self time of an operator, duration of a kernel, summed over all calls; of a sample of the operators,
            an estimate of their whole durations.
        count: Number of calls; of a sample, an estimate.
        share: Fraction of the time of all operators, or of all device work; of a sample, of the steps' time.
        error_ns: Standard error of ``total_ns``; 0 where it is no estimate.
    """

    name: str
    kind: str
    total_ns: int
    count: int
    share: float
    error_ns: float = 0.0


@dataclass(frozen=True)
class DataWait:
    """How long the training thread waited for its next batch, inside the steps.

    Attributes:
        total_ns: All waiting, also while the device worked.
        exposed_ns: Waiting while nothing else worked: the part ``data wait`` of the split.
        share: ``total_ns`` as a fraction of the steps' time.
        count: Number of waits.
        workers: Worker processes of the data loader; None where the recording does not say.
    """

    total_ns: int
    exposed_ns: int
    share: float
    count: int
    workers: int | None


@dataclass(frozen=True)
class Garbage:
    """Pauses of Python's garbage collector inside the steps: their time, fraction of the steps' time, and number."""

    total_ns: int
    share: float
    count: int


@dataclass(frozen=True)
class MemoryPeak:
    """Most memory on one device, in bytes: allocated by tensors, reserved by the framework; None where not known."""

    device: str
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True)
class Summary:
    """What the printed summary shows.

    Attributes:
        on_device: Whether the split is that of device streams; else that of host threads.
        devices: Names of the devices that worked, such as ``cuda:0``.
        steps: Number and durations of the steps.
        split: Disjoint parts of the steps' time, in the order of :class:`Part`; they add up to it exactly. With a
            sample of the operators, ``host only`` counts as ``idle``, and on a rank without a device nothing is known.
        operators: Host operators with most self time within the steps, or anywhere where there are none; most first.
        kernels: Device work with most time, likewise; empty without a device.
        data_wait: Waiting for batches.
        garbage: Garbage collection.
        memory: Peak of every device that reported memory, ``cpu`` among them.
        resident_bytes: Largest resident set of the process; None where it was not sampled.
        losses: Everything dropped, cut, clipped or repaired, most severe first.
        look_first: One line: what to look at first.
        sampled: Fraction of the operators that was recorded.
    """

    on_device: bool
    devices: tuple[str, ...]
    steps: Steps
    split: tuple[Part, ...]
    operators: tuple[Entry, ...]
    kernels: tuple[Entry, ...]
    data_wait: DataWait
    garbage: Garbage
    memory: tuple[MemoryPeak, ...]
    resident_bytes: int | None
    losses: tuple[Loss, ...]
    look_first: str
    sampled: float = 1.0
