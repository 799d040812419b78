"""Which files a capture should have besides those that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepscope.read.ascend.ascend_files import OUTPUT
from stepscope.read.ascend.ascend_frames import Frames
from stepscope.read.common.source import Capture


@dataclass(frozen=True)
class _Pair:
    """Two files of which a profiler writes both or neither.

    Attributes:
        there: Sort of the one that is there.
        absent: Sort of the other.
        name: What the other is called.
        told: Whether what is there shows that the other was written.
    """

    there: str
    absent: str
    name: str
    told: Callable[[Frames], bool] = lambda _: True


_PAIRS = (
    _Pair("kernels", "trace", "trace_view.json"),
    # Without device work, and at the lowest level, there are no details.
    _Pair("trace", "kernels", "kernel_details.csv", lambda frames: bool(frames["tasks"].height)),
    _Pair("memory", "blocks", "operator_memory.csv"),
    _Pair("blocks", "memory", "memory_record.csv"),
    _Pair("communication", "matrix", "communication_matrix.json"),
    _Pair("matrix", "communication", "communication.json"),
    _Pair("analysis_db", "events_db", "ascend_*_profiler_*.db"),
    _Pair("events_db", "analysis_db", "analysis.db", lambda frames: bool(frames["communications"].height)),
)


def of(capture: Capture, frames: Frames) -> Iterator[str]:
    """Yield the names of files that captures of this sort have and this one has not.

    Args:
        capture: The files.
        frames: What they say.
    """
    there = {sort for sort in capture.files if any(path.parent.name == OUTPUT for path in capture.of(sort))}
    by_database = "events_db" in there
    for pair in _PAIRS:
        is_database = pair.absent.endswith("_db")
        # Beside a database text files are no set of their own.
        if pair.there in there and pair.absent not in there and (is_database or not by_database) and pair.told(frames):
            yield pair.name
