"""The summary of a rank: the few numbers that the printed page shows.

Every time is in integer nanoseconds, every share a fraction of the steps' time between 0 and 1 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analyse.step.run_steps import NONE, RunSteps
from stepscope.notebook_display import NotebookDisplay
from stepscope.trace.losses import Loss


@dataclass(frozen=True)
class Steps:
    """How many steps, and how long they took.

    Attributes:
        count: Number of steps; 0 if the trace has none, and the times below are those of its whole range.
        total_ns: Sum of the steps' durations.
        mean_ns: Mean duration.
        p50_ns: Median duration.
        p95_ns: The duration that 95 % of the steps do not exceed (linear interpolation).
        shortest_ns: Shortest duration.
        longest_ns: Longest duration.
        per_second: Steps per second of step time; 0 without steps.
        inferred: Whether the steps were inferred rather than declared by the program.
        of_device: Shortest, median and longest duration as the device works for the steps, ns, where the steps are
            those of a host that runs ahead; else empty.
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
    of_device: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepPart:
    """One part of the steps' time; the parts are disjoint and their sum is the steps' total.

    Attributes:
        name: ``computing``, ``communication``, ``copy``, ``data wait``, ``sync``, ``host only`` or ``idle``; of a phase
            its name.
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
        name: Name, without what only a framework's own code adds; of a compiled program the scope and phase.
        kind: Kind of its spans: operator, kernel, memcpy, memset or collective.
        total_ns: Self time of an operator, duration of a kernel, summed over all calls; of a sample of the operators,
            an estimate of their whole durations.
        count: Number of calls; of a sample, an estimate.
        share: Fraction of the time of all operators, or of all device work; of a sample, of the steps' time.
        error_ns: Standard error of ``total_ns``; 0 if it is not an estimate.
        flops: Floating-point operations of all calls; None if unknown.
    """

    name: str
    kind: str
    total_ns: int
    count: int
    share: float
    error_ns: float = 0.0
    flops: float | None = None


@dataclass(frozen=True)
class DataWait:
    """How long the training thread waited for its next batch, inside the steps.

    Attributes:
        total_ns: All waiting, also while the device worked.
        exposed_ns: Waiting while nothing else worked: the part ``data wait`` of the split.
        share: ``total_ns`` as a fraction of the steps' time.
        count: Number of waits.
        workers: Worker processes of the data loader; None if the recording does not say.
        cores: Processor cores that the training process may use; None if the recording does not say.
    """

    total_ns: int
    exposed_ns: int
    share: float
    count: int
    workers: int | None
    cores: int | None = None


@dataclass(frozen=True)
class Garbage:
    """Pauses of Python's garbage collector inside the steps: their time, fraction of the steps' time, and number.

    A pause inside a compilation is not among them: MindSpore collects garbage before it compiles.
    """

    total_ns: int
    share: float
    count: int


@dataclass(frozen=True)
class Compiling:
    """Compilations inside the steps: their time, fraction of the steps' time, the longest, and why it came again."""

    total_ns: int
    share: float
    longest: str
    why: str


@dataclass(frozen=True)
class OutOfMemory:
    """The last request that the allocator of a device refused: bytes, those that were free, and where; None: unknown.

    ``count`` is how often it refused.
    """

    device: str
    asked: int
    free: int | None
    line: str | None
    count: int


@dataclass(frozen=True)
class MemoryPeak:
    """Most memory on one device, in bytes: allocated by tensors, reserved by the framework; None if unknown."""

    device: str
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True)
class Summary(NotebookDisplay):
    """What the printed summary shows.

    Attributes:
        on_device: Whether the split is that of device streams; else that of host threads.
        devices: Names of the devices that worked, such as ``cuda:0``.
        steps: Number and durations of the steps.
        split: Disjoint parts of the steps' time, in the order of :class:`StepPart`; they add up to it exactly. With a
            sample of the operators, ``sync`` and ``host only`` count as ``idle``, and on a rank without a device
            nothing is known.
        framework: Module of the framework, such as ``torch``; empty if the tables do not show it.
        phases: Disjoint phases of the steps' time in the order of :data:`~.phase_times.SHOWN`, which add up to it
            exactly; empty if no phase is known.
        operators: Host operators with most self time within the steps, or anywhere without steps; most first.
        kernels: Device work with most time, likewise; empty without a device.
        data_wait: Waiting for batches.
        garbage: Garbage collection.
        compiling: Compilations; None without any.
        memory: Peak of every device that reported memory, ``cpu`` among them.
        resident_bytes: Largest resident set of the process; None if it was not sampled.
        losses: Everything dropped, cut, clipped or repaired, most severe first.
        sampled: Fraction of the operators that was recorded.
        not_recorded: Parts of a step of which the source says nothing; they are not in ``split``.
        totals_compared: Whether the source states totals, and they were compared with the tables.
        run: All steps of the run, recorded or not.
        preempted: Operator calls from which ``operators`` leaves out the time that their thread waited for a core.
        preempted_ns: That time.
        exhausted: What the allocators refused; empty if nothing.
        sampled_only: The function of Python with most of the samples, where nothing else with a time was recorded.
    """

    on_device: bool
    devices: tuple[str, ...]
    steps: Steps
    split: tuple[StepPart, ...]
    operators: tuple[Entry, ...]
    kernels: tuple[Entry, ...]
    data_wait: DataWait
    garbage: Garbage
    memory: tuple[MemoryPeak, ...]
    resident_bytes: int | None
    losses: tuple[Loss, ...]
    sampled: float = 1.0
    totals_compared: bool = False
    not_recorded: tuple[str, ...] = ()
    framework: str = ""
    phases: tuple[StepPart, ...] = ()
    run: RunSteps = NONE
    preempted: int = 0
    preempted_ns: int = 0
    compiling: Compiling | None = None
    sampled_only: Entry | None = None
    exhausted: tuple[OutOfMemory, ...] = ()
