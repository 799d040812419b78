"""The stacks of a rank as a profile of pprof, with labels for thread, step, phase and module."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from stepscope.report.protocol import Source
from stepscope.report.safe_text import storable
from stepscope.report.stacks.weighted_stacks import StackLabels, WeightedStacks, weighted_stacks
from stepscope.report.timeline.perfetto.protobuf import block, integer, text, varint
from stepscope.report.whole_files import write_whole

#: A negative number is written as its two's complement.
_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class PprofProfile:
    """``profile.pb.gz``: ``profile.proto`` of pprof; a sample each thread, stack and labels, with looks and ns."""

    name: str = "pprof"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the file; see :class:`stepscope.report.protocol.Format`."""
        path = directory / "profile.pb.gz"
        # Without a time in the head, the same stacks give the same bytes.
        write_whole(path, gzip.compress(_encoded(weighted_stacks(source)), mtime=0))
        return [path]


class _Texts:
    """The table of texts; the first one is empty."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, value: str) -> int:
        return self._numbers.setdefault(storable(value), len(self._numbers))

    def encoded(self) -> bytes:
        return b"".join(text(6, value) for value in self._numbers)


def _encoded(stacks: WeightedStacks) -> bytes:
    texts = _Texts()
    types = [integer(1, texts.number(kind)) + integer(2, texts.number(unit))
             for kind, unit in (("samples", "count"), ("time", "nanoseconds"))]  # fmt: skip
    totals: dict[tuple[str, int | None, StackLabels], list[int]] = defaultdict(lambda: [0, 0])
    for thread in stacks.threads:
        for row in thread.rows:
            total = totals[thread.name, row.node, row.labels]
            total[0] += row.looks
            total[1] += row.dur
    samples = []
    for (name, node, labels), values in totals.items():
        places = b"".join(varint(frame + 1) for frame in stacks.tree.path(node))
        content = block(1, places) + block(2, b"".join(map(varint, values)))
        samples.append(content + block(3, _label(texts, "thread", name)) + _labels(texts, labels))
    frames = stacks.tree.frames
    parts = [block(1, one) for one in types]
    parts += [block(2, one) for one in samples]
    parts += [
        block(4, integer(1, number) + block(4, integer(1, number) + integer(2, line or 0)))
        for number, (_, line, _) in enumerate(frames, 1)
    ]
    parts += [
        block(5, integer(1, number) + integer(2, texts.number(function)) + integer(4, texts.number(file or "")))
        for number, (file, _, function) in enumerate(frames, 1)
    ]
    last = integer(9, stacks.begin) + integer(10, stacks.end - stacks.begin) + integer(14, texts.number("time"))
    return b"".join([*parts, texts.encoded(), last])


def _labels(texts: _Texts, labels: StackLabels) -> bytes:
    found = [] if labels.step is None else [integer(1, texts.number("step")) + integer(3, labels.step & _BITS)]
    found += [
        _label(texts, name, value) for name, value in (("phase", labels.phase), ("module", labels.module)) if value
    ]
    return b"".join(block(3, one) for one in found)


def _label(texts: _Texts, name: str, value: str) -> bytes:
    return integer(1, texts.number(name)) + integer(2, texts.number(value))
