"""Which operation of the data pipeline holds up the others: MindSpore's rules, limits and sentences.

The rules are those of MindSpore 2.10's summary of the data pipeline, so that users of both find the same advice.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Limits in %.
_BUSY_WORKER, _IDLE_WORKER = 75, 20
_LEAF_QUEUE_USE, _EMPTY_DEVICE_QUEUE, _USE_DIFFERENCE, _LOW_QUEUE_USE = 50, 60, 50, 10
#: Operations without workers of their own.
_SINGLE_THREADED = frozenset({"Barrier", "Concat", "EpochCtrl", "Rename", "Repeat", "Shuffle", "Skip", "Take", "Zip"})
_DEVICE_QUEUE = "DeviceQueue"
_UNKNOWN = -1


@dataclass(frozen=True)
class Pipeline:
    """The operations in order of their numbers, column by column; −1 where a number is not known.

    Attributes:
        names: Names without their common ending.
        mean: Mean length of the output queue; ``use`` is that in % of its capacity.
        empty: How often the output queue was empty, in %.
        cpu: CPU use of each worker, in %.
    """

    ids: list[int]
    names: list[str]
    workers: list[int]
    children: list[list[int]]
    mean: list[float]
    use: list[float]
    empty: list[float]
    cpu: list[float]

    @property
    def labels(self) -> list[str]:
        """Name and number of each operation."""
        return [f"{name}(id={number})" for name, number in zip(self.names, self.ids, strict=True)]

    def input_of(self, index: int) -> int | None:
        """Return the index of the nearest operation before this one that has a queue; None if there is none.

        Of several inputs the first counts.
        """
        index_of = {number: at for at, number in enumerate(self.ids)}
        seen: set[int] = set()
        while index not in seen:
            seen.add(index)
            if not self.children[index] or (before := index_of.get(self.children[index][0])) is None:
                return None
            if self.mean[before] != _UNKNOWN:
                return before
            index = before
        return None


def bottlenecks(pipeline: Pipeline) -> dict[str, list[str]]:
    """Return the sentences by the name of their line; a line without a sentence is left out."""
    worst = _worst(pipeline)
    lines = {
        "cpu_analysis_details": [text for index in _threaded(pipeline) if (text := _cpu_sentence(pipeline, index))],
        "queue_analysis_details": [text for index in _threaded(pipeline) if (text := _queue_sentence(pipeline, index))],
        "bottleneck_warning": [worst[0]] if worst else [],
        "bottleneck_suggestion": [worst[1]] if worst else [],
    }
    return {name: sentences for name, sentences in lines.items() if sentences}


def _threaded(pipeline: Pipeline) -> list[int]:
    return [index for index, name in enumerate(pipeline.names) if name not in _SINGLE_THREADED]


def _cpu_sentence(pipeline: Pipeline, index: int) -> str:
    if pipeline.cpu[index] > _BUSY_WORKER:
        return _busy(pipeline, index)
    if _idle(pipeline, index) and pipeline.workers[index] > 1:
        return (
            f"{pipeline.labels[index]} is using {pipeline.cpu[index]}% CPU per worker. Using num_parallel_workers="
            f"{pipeline.workers[index]} might not bring as much benefit due to low CPU usage per worker."
        )
    return ""


def _idle(pipeline: Pipeline, index: int) -> bool:
    return pipeline.cpu[index] != _UNKNOWN and pipeline.cpu[index] < _IDLE_WORKER


def _busy(pipeline: Pipeline, index: int) -> str:
    return (
        f"{pipeline.labels[index]} is using {pipeline.cpu[index]}% CPU per worker. "
        f"Setting num_parallel_workers>{pipeline.workers[index]} might bring extra performance."
    )


def _queue_sentence(pipeline: Pipeline, index: int) -> str:
    if pipeline.names[index] == "Batch":
        return ""
    before, use = pipeline.input_of(index), pipeline.use[index]
    label = pipeline.labels[index]
    if before is None:
        used_little = use != _UNKNOWN and use <= _LEAF_QUEUE_USE
        advice = f"Setting num_parallel_workers>{pipeline.workers[index]} might speed up I/O."
        return f"Leaf op {label} is using {use}% of its output queue. {advice}" if used_little else ""
    empty, filled = pipeline.empty[before], pipeline.use[before]
    if pipeline.names[index] == _DEVICE_QUEUE and empty > _EMPTY_DEVICE_QUEUE:
        return (
            f"{label}'s input queue is empty {empty}% of the time. This might indicate dataset bottlenecks. Hence host "
            f"cannot keep up with the device {empty}% of the time. Device waits whenever input queue is empty."
        )
    if pipeline.names[index] == _DEVICE_QUEUE or _UNKNOWN in (use, filled) or filled - use <= _USE_DIFFERENCE:
        return ""
    return (
        f"{label}'s input queue usage={filled}% is greater than output queue usage={use}%. This indicates child op "
        f"{pipeline.labels[before]} might be producing faster than its parent {label} can consume. "
        "If this op has low CPU utilization, try increasing prefetch_size or increasing num_workers."
    )


def _worst(pipeline: Pipeline) -> tuple[str, str] | None:
    """Return the operation nearest to the batches that holds up the others, and what to do; None if none does."""
    for index in _threaded(pipeline):
        if pipeline.names[index] == _DEVICE_QUEUE:
            continue
        if pipeline.cpu[index] > _BUSY_WORKER:
            return pipeline.labels[index], _busy(pipeline, index)
        if _idle(pipeline, index) and _abnormal(pipeline, index):
            return pipeline.labels[index], (
                f"{pipeline.labels[index]} has low CPU utilization per worker of {pipeline.cpu[index]}% and abnormal "
                "queue usage. Try increasing prefetch_size."
            )
    return None


def _abnormal(pipeline: Pipeline, index: int) -> bool:
    before = pipeline.input_of(index)
    if before is None:
        return False
    use = pipeline.use[before]
    return use < _LOW_QUEUE_USE or pipeline.use[index] - use > _USE_DIFFERENCE
