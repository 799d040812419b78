"""A small capture of every format that is read, by the format's name."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

from stepscope.collect.journal.journal import Journal
from stepscope.trace.cupti_layout import Kind
from tests.unit import ascend_build, nsight_build, perfetto_build, recorder_build, rocprof_build
from tests.unit.cupti_build import File
from tests.unit.read.memory_snapshot import snapshot_build

DATA = Path(__file__).resolve().parent / "data"


def a_journal(directory: Path) -> Path:
    journal = Journal(directory / "journal.ssj")
    for i in range(200):
        journal.span(f"span {i % 7}", "annotation", i * 100, i * 100 + 50, {"i": i})
        if i % 40 == 0:
            journal.step(i // 40, i * 100, i * 100 + 4_000, "declared")
            journal.flush()
    journal.counter("loss", 0.5)
    journal.close()
    return journal.path


def a_kineto_trace(directory: Path) -> Path:
    path = directory / "trace.json"
    path.write_bytes(gzip.decompress((DATA / "kineto" / "cuda_event_sync.json.gz").read_bytes()))
    return path


def a_mindspore_directory(directory: Path) -> Path:
    return Path(shutil.copytree(DATA / "mindspore_cpu" / "collected_graph", directory / "mindspore"))


def an_ascend_directory(directory: Path) -> Path:
    return ascend_build.capture(directory, kernels=10)


def a_cupti_file(directory: Path) -> Path:
    file = File(directory / "cupti.ssc")
    file.names([(0xABC0, "_Z3addPf", "add(float*)")])
    for i in range(4):
        calls = [
            file.record(Kind.RUNTIME, callback=211, start=at, end=at + 2, process=1, thread=2, correlation=at)
            for at in range(100 * i + 1, 100 * i + 21)
        ]
        kernels = [
            file.record(Kind.CONCURRENT_KERNEL, start=at + 5, end=at + 9, correlation=at, name=0xABC0, stream=at % 3)
            for at in range(100 * i + 1, 100 * i + 21)
        ]
        file.buffer(*calls, *kernels)
    return file.close()


def a_recorders_file(directory: Path) -> Path:
    file = recorder_build.File(directory / "recorder.ssr")
    threads = [file.thread(4711, 1, "python"), file.thread(4712, 2)]
    for i in range(40):
        for thread in threads:
            thread.begin(1_000 * i, f"aten::op{i % 3}", sequence=i, inputs=recorder_build.tensor(6, [i % 4, 2], [2, 1]))
            thread.begin(1_000 * i + 100, "aten::inner", forward=1 if thread.torch == 2 else None, sequence=i)
            thread.memory(1_000 * i + 150, 64 * i, 128)
            thread.end(1_000 * i + 200)
            thread.end(1_000 * i + 300)
        if i % 10 == 0:
            file.clock(1_000 * i + 400)
            for thread in threads:
                thread.flush() if i % 20 else thread.next_chunk()
    return file.close(50_000)


def a_fluid_profile(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "paddle" / "fluid185" / "all_total.pb", directory / "profile"))


def a_paddle_trace(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "paddle" / "paddle331_static.pb", directory / "paddle_trace.pb"))


def a_paddle_json(directory: Path) -> Path:
    path = directory / "paddle_trace.json"
    path.write_bytes(gzip.decompress((DATA / "paddle" / "paddle331_static.json.gz").read_bytes()))
    return path


def a_memory_profile(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "pprof" / "memory.pb.gz", directory / "memory.pb.gz"))


def a_memory_snapshot(directory: Path) -> Path:
    return snapshot_build.written(directory / "snapshot.pickle")


def an_xplane_file(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "xplane" / "steps.xplane.pb", directory / "host.xplane.pb"))


def a_rocprof_file(directory: Path) -> Path:
    return rocprof_build.write(directory / "1_results.json", kernels=20)


def an_nsight_export(directory: Path) -> Path:
    return nsight_build.write(directory / "report.sqlite", steps=6)


def collapsed_stacks(directory: Path) -> Path:
    path = directory / "stacks.folded.gz"
    lines = [f"thread ({7 + i % 3}): w{i % 3};main (a.py:3);f{i} (b.py:{i});g (c.py) {i + 1}\n" for i in range(60)]
    path.write_bytes(gzip.compress(("# 50 hz\n" + "".join(lines)).encode()))
    return path


def a_perfetto_trace(directory: Path) -> Path:
    return perfetto_build.write(directory / "trace.pftrace", steps=12)


def a_speedscope_file(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "speedscope" / "pyspy.speedscope.json", directory / "pyspy.speedscope.json"))


#: A small capture of every format, by the format's name.
SAMPLES: dict[str, Callable[[Path], Path]] = {
    "journal": a_journal,
    "cupti": a_cupti_file,
    "recorder": a_recorders_file,
    "kineto": a_kineto_trace,
    "mindspore": a_mindspore_directory,
    "ascend": an_ascend_directory,
    "fluid": a_fluid_profile,
    "paddle": a_paddle_trace,
    "paddle_json": a_paddle_json,
    "xplane": an_xplane_file,
    "pprof": a_memory_profile,
    "memory_snapshot": a_memory_snapshot,
    "rocprof": a_rocprof_file,
    "nsight": an_nsight_export,
    "collapsed": collapsed_stacks,
    "perfetto": a_perfetto_trace,
    "speedscope": a_speedscope_file,
}
