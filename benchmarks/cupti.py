"""Decoding CUPTI's raw activity buffers: records per second, on buffers like those of a training step.

The buffers are synthetic and resemble those of a program of many small kernels: each kernel with the call that launched
it, a copy and a fill for every tenth kernel, and some waits. Each stage is measured separately, best of several runs:
raw buffers → arrays, → frames of work and calls, → tables of the schema, and the whole file → assembled tables. No
comparable tool exists: Kineto decodes while it records, NVIDIA's own Python package returns one object per record (0.45
to 75 µs each, depending on the version).

    python benchmarks/cupti.py --records 2000000 --cuda 13.0
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from stepscope.read import read_files
from stepscope.read.cupti import cupti_reader as cupti
from stepscope.read.cupti.activity_records import RecordDecoder
from stepscope.trace.blocks import FrameWriter, pack
from stepscope.trace.cupti_layout import BUFFER, FACTS, MAGIC, RECORDS, Kind, Layout, layout_of
from stepscope.trace.losses import LossLedger

START = 1_700_000_000_000_000_000
NAMES = {0x1000 + 64 * number: f"kernel_{number}" for number in range(200)}


def put(layout: Layout, kind: Kind, values: dict[str, int]) -> bytes:
    """Return one record."""
    content = bytearray(layout.sizes[kind])
    struct.pack_into("<I", content, 0, kind)
    for name, value in values.items():
        offset, form = layout.fields(kind)[name]
        content[offset : offset + int(form[1:])] = value.to_bytes(int(form[1:]), "little", signed=form[0] == "i")
    return bytes(content)


def group(layout: Layout, number: int) -> list[bytes]:
    """Return a launch and its kernel; for some numbers also a copy, a fill and a wait."""
    at = START + 10_000 * number
    place = {"device": 0, "context": 1, "stream": 7 + number % 3}
    call = {"start": at, "end": at + 2_000, "process": 4711, "thread": 4712, "correlation": number + 1}
    sizes = {"grid_x": 64, "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1, "registers": 32}
    times = {"start": at + 3_000, "end": at + 9_000, "correlation": number + 1}
    name = 0x1000 + 64 * (number % len(NAMES))
    records = [
        put(layout, Kind.RUNTIME, {**call, "callback": 211}),
        put(layout, Kind.CONCURRENT_KERNEL, {**place, **sizes, **times, "name": name}),
    ]
    if number % 10 == 0:
        records.append(put(layout, Kind.MEMCPY, {**place, **times, "copy_kind": 1, "bytes": 4096}))
        records.append(put(layout, Kind.MEMSET, {**place, **times, "bytes": 4096}))
    if number % 50 == 0:
        records.append(put(layout, Kind.SYNCHRONIZATION, {"start": at, "end": at + 1_000, "sort": 3, "stream": 7}))
    return records


def buffers(layout: Layout, records: int) -> tuple[list[bytes], int]:
    """Return buffers with about this many records in total, and the exact number."""
    full: list[bytes] = []
    current, count, number = bytearray(), 0, 0
    while count < records:
        made = group(layout, number)
        number += 1
        if len(current) + sum(map(len, made)) > BUFFER:
            full.append(bytes(current))
            current.clear()
        for record in made:
            current += record
        count += len(made)
    return [*full, bytes(current)], count


def write(path: Path, content: list[bytes], cuda: int) -> None:
    """Write the buffers as the collector does."""
    frames = FrameWriter(path, MAGIC)
    names = [(pointer, text, text) for pointer, text in NAMES.items()]
    calls = {"runtime": [(211, "cudaLaunchKernel")], "driver": []}
    frames.append(FACTS + pack({"cuda": cuda, "process": 4711, "calls": calls, "anchors": [(0, 0, 1)], "names": names}))
    for buffer in content:
        frames.append(RECORDS + zlib.compress(buffer, 1))
    frames.append(FACTS + pack({"closed": True}))
    frames.close()


def best(action: Callable[[], object], repeats: int) -> float:
    """Return the time of the fastest of several runs in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--cuda", default="13.0", help="version of CUDA whose layout is used")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    major, _, minor = arguments.cuda.partition(".")
    cuda = 100 * int(major) + int(minor or 0)
    content, count = buffers(layout_of(cuda), arguments.records)
    size = sum(map(len, content))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "cupti.ssc")
        packing = best(lambda: [zlib.compress(buffer, 1) for buffer in content[:8]], 1) / min(len(content), 8)
        write(path, content, cuda)

        def decode() -> RecordDecoder:
            decoder = RecordDecoder(layout_of(cuda), LossLedger("benchmark"))
            for buffer in content:
                decoder.add(buffer, NAMES)
            return decoder

        capture = cupti.open_capture(path, LossLedger("benchmark"))
        rows = {
            "raw buffers to arrays": decode,
            "file to arrays": lambda: cupti.open_capture(path, LossLedger("benchmark")),
            "arrays to frames": lambda: (capture.device_work(LossLedger("x")), capture.calls(LossLedger("x"))),
            "arrays to tables": lambda: capture.tables(LossLedger("x")),
            "file to assembled tables": lambda: read_files([path]),
        }
        packed = path.stat().st_size
        print(f"{count:,} records, {size / 1e6:.0f} MB in {len(content)} buffers, {packed / 1e6:.0f} MB packed")
        print(f"{'packing one buffer while recording':<36}{1e3 * packing:8.1f} ms, without the GIL")
        for name, action in rows.items():
            seconds = best(action, arguments.repeats)
            print(f"{name:<36}{seconds:8.2f} s {count / seconds / 1e6:8.2f} M records/s")


if __name__ == "__main__":
    main()
