"""Recording with CUPTI, as far as it goes without a GPU.

A library in C stands in for CUPTI: it lends and completes buffers under a lock of its own, as the real one does. What
needs the real one and a GPU is in tests/gpu.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

import stepscope
from stepscope import native
from stepscope.collect.cuda import cupti_library
from stepscope.collect.cuda.cupti_collector import CuptiCollector, other_user
from stepscope.collect.cuda.cupti_names import KernelNames
from stepscope.native.cupti import CuptiBuffers
from stepscope.read import read_files
from stepscope.read.cupti.activity_records import RecordDecoder
from stepscope.run import Run
from stepscope.trace.cupti_layout import Kind, layout_of
from stepscope.trace.losses import LossLedger
from tests.unit.collect.cuda import cupti_stand_in
from tests.unit.cupti_build import record

needs_native = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables by which a program finds the stand-in."""
    return cupti_stand_in.build(tmp_path_factory.mktemp("cuda"))


def run(stand_in: Mapping[str, str], directory: Path, program: str) -> str:
    """Run a program in a process of its own, which finds the stand-in."""
    head = f"""
        import ctypes, threading, time
        from pathlib import Path
        from stepscope.collect.cuda import cupti_library
        from stepscope.collect.cuda.cupti_recorder import CuptiRecorder
        library = cupti_library.load()
        cuda = ctypes.PyDLL(library.path)   # keeps Python's lock in calls, as many extensions do
        free = ctypes.CDLL(library.path)    # lets go of it
        names = [b"_Z3addPf", b"_Z3mulPf"]
        path = Path({str(directory / "cupti.ssc")!r})

        def wait_until_written(kernels):
            from stepscope.read import read_files
            while not path.stat().st_size or read_files([path])["kernels"].height < kernels:
                time.sleep(0.02)
    """
    text = textwrap.dedent(head) + textwrap.dedent(program)
    environment = {**stand_in, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(stepscope.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(frames: dict[str, pl.DataFrame]) -> dict[str, int]:
    table = frames["losses"].filter(pl.col("severity") != "info")
    return dict(zip(table["what"].cast(pl.String).to_list(), table["count"].to_list(), strict=True))


@needs_native
def test_a_recording_from_start_to_tables(stand_in: dict[str, str], tmp_path: Path) -> None:
    out = run(
        stand_in,
        tmp_path,
        """
        recorder = CuptiRecorder(path, library)
        recorder.start()
        assert cuda.stand_in_thread_type() == 1
        begin = time.time_ns()
        threads = [threading.Thread(target=cuda.stand_in_launch, args=(name, 30_000)) for name in names]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        recorder.stop()
        assert not cuda.stand_in_enabled() and cuda.stand_in_thread_type() == 0
        print(begin, time.time_ns(), *(thread.native_id for thread in threads))
        print(recorder.missing)
        """,
    )
    begin, end, *threads = map(int, out.splitlines()[0].split())
    assert "SYNCHRONIZATION" not in out
    assert out.splitlines()[1] == "{'synchronization': 'cuptiActivityEnable failed: INVALID_KIND (21)'}"
    frames = read_files([tmp_path / "cupti.ssc"])
    # Then: every kernel is there with its name in C++, its call, on its thread, at its time
    assert losses(frames) == {}
    spans = frames["spans"].with_columns(pl.col("name", "kind").cast(pl.String))
    counts = dict(
        spans.group_by("kind", "name").len().select(pl.concat_str("kind", "name", separator=" "), "len").rows()
    )
    assert counts == {"kernel add(float*)": 30_000, "kernel mul(float*)": 30_000, "runtime cudaLaunchKernel": 60_000}
    assert frames["kernels"]["launch"].null_count() == 0
    assert set(frames["tracks"]["thread"].drop_nulls()) == set(threads)
    assert begin - 1_000_000 < spans["ts"].min() < spans["ts"].max() < end + 1_000_000  # type: ignore[operator]
    assert set(spans.filter(pl.col("kind") == "kernel")["dur"]) == {3_000}


@needs_native
def test_callbacks_never_wait_for_python(stand_in: dict[str, str], tmp_path: Path) -> None:
    # Given: threads that call CUDA with Python's lock, and threads without it, so that with callbacks in Python one
    # would hold CUPTI's lock and wait for Python's, and the other hold Python's and wait for CUPTI's
    run(
        stand_in,
        tmp_path,
        """
        recorder = CuptiRecorder(path, library)
        recorder.start()
        work = [(cuda, names[0]), (free, names[1])] * 3
        threads = [threading.Thread(target=which.stand_in_launch, args=(name, 100_000)) for which, name in work]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        recorder.stop()
        """,
    )
    frames = read_files([tmp_path / "cupti.ssc"])
    lost = losses(frames).get("device_records_dropped", 0)
    assert frames["spans"].height + lost == 1_200_000


@needs_native
def test_a_gpu_that_hangs_stops_nobody(stand_in: dict[str, str], tmp_path: Path) -> None:
    out = run(
        stand_in,
        tmp_path,
        """
        from stepscope.collect.cuda import cupti_recorder
        cupti_recorder.PATIENCE = 0.5
        recorder = CuptiRecorder(path, library)
        recorder.start()
        free.stand_in_launch(names[0], 10)
        wait_until_written(10)
        free.stand_in_delay(20)
        begin = time.monotonic()
        try:
            recorder.stop()
        except TimeoutError as error:
            print(error, flush=True)
        assert time.monotonic() - begin < 15
        import os; os._exit(0)
        """,
    )
    assert "did not arrive within" in out
    frames = read_files([tmp_path / "cupti.ssc"])
    assert frames["kernels"].height == 10
    assert losses(frames) == {"ended_abruptly": 1}


@needs_native
def test_buffers_that_another_profiler_got_are_counted(stand_in: dict[str, str], tmp_path: Path) -> None:
    run(
        stand_in,
        tmp_path,
        """
        recorder = CuptiRecorder(path, library)
        recorder.start()
        free.stand_in_launch(names[0], 10)
        free.stand_in_take_over()
        recorder.stop()
        """,
    )
    assert losses(read_files([tmp_path / "cupti.ssc"])) == {"device_buffers_lost": 1}


@needs_native
def test_a_late_buffer_is_counted_and_never_enters_the_next_window(stand_in: dict[str, str], tmp_path: Path) -> None:
    # Given: CUPTI gives a buffer back only when the next window is open
    run(
        stand_in,
        tmp_path,
        """
        recorder = CuptiRecorder(path, library)
        recorder.start()
        free.stand_in_hold()
        free.stand_in_launch(names[0], 10)
        recorder.stop()
        following = CuptiRecorder(path.with_name("next.ssc"), library)
        following.start()
        free.stand_in_launch(names[1], 5)
        free.stand_in_complete_late()
        following.stop()
        """,
    )
    assert losses(read_files([tmp_path / "cupti.ssc"])) == {"device_buffers_lost": 1}
    following = read_files([tmp_path / "next.ssc"])
    assert losses(following) == {}
    assert following["kernels"].height == 5


@needs_native
@pytest.mark.parametrize("recording", ["while it records", "after it has recorded"])
def test_buffers_that_come_at_the_end_of_the_process_harm_nobody(
    stand_in: dict[str, str], tmp_path: Path, recording: str
) -> None:
    """CUPTI completes its buffers when the process unloads it; Python is gone by then."""
    stop = "free.stand_in_hold(); free.stand_in_launch(names[1], 5); recorder.stop()"
    run(
        stand_in,
        tmp_path,
        f"""
        recorder = CuptiRecorder(path, library)
        recorder.start()
        free.stand_in_launch(names[0], 10)
        wait_until_written(10)
        {stop if recording == "after it has recorded" else "free.stand_in_launch(names[1], 5)"}
        """,
    )
    frames = read_files([tmp_path / "cupti.ssc"])
    assert frames["kernels"].height == 10
    assert losses(frames) in ({"device_buffers_lost": 1}, {"ended_abruptly": 1})


@needs_native
def test_the_kernels_of_a_graph_belong_to_its_launch(stand_in: dict[str, str], tmp_path: Path) -> None:
    run(
        stand_in,
        tmp_path,
        """
        recorder = CuptiRecorder(path, library)
        recorder.start()
        free.stand_in_graph(names[0], 4)
        free.stand_in_graph(names[0], 4)
        recorder.stop()
        """,
    )
    frames = read_files([tmp_path / "cupti.ssc"])
    assert losses(frames) == {}
    kernels, spans = frames["kernels"], frames["spans"]
    assert kernels["graph_node"].n_unique() == 4
    launches = spans.filter(pl.col("name").cast(pl.String) == "cudaGraphLaunch")["id"].to_list()
    assert kernels["launch"].value_counts().sort("launch").rows() == [(launch, 4) for launch in sorted(launches)]


@needs_native
def test_streams_of_several_contexts_are_several_streams(stand_in: dict[str, str], tmp_path: Path) -> None:
    run(
        stand_in,
        tmp_path,
        """
        recorder = CuptiRecorder(path, library)
        recorder.start()
        free.stand_in_contexts(names[0])
        recorder.stop()
        """,
    )
    frames = read_files([tmp_path / "cupti.ssc"])
    assert losses(frames) == {}
    names = frames["tracks"].filter(pl.col("kind").cast(pl.String) == "stream")["name"].to_list()
    assert names == ["stream 7 of context 1", "stream 7 of context 2"]
    assert frames["kernels"]["launch"].null_count() == 0


@needs_native
def test_windows_one_after_the_other_leave_nothing(stand_in: dict[str, str], tmp_path: Path) -> None:
    out = run(
        stand_in,
        tmp_path,
        """
        import os
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        for number in range(60):
            if number == 10:
                before = resident(), len(os.listdir("/proc/self/fd")), threading.active_count()
            recorder = CuptiRecorder(path.with_name(f"{number}.ssc"), library)
            recorder.start()
            free.stand_in_launch(names[0], 20_000)
            recorder.stop()
            recorder.stop()
        after = resident(), len(os.listdir("/proc/self/fd")), threading.active_count()
        print(after[0] - before[0], after[1] - before[1], after[2] - before[2])
        """,
    )
    grown, files, threads = map(int, out.split())
    assert (files, threads) == (0, 0)
    assert grown < 8 << 20
    assert read_files([tmp_path / "59.ssc"])["kernels"].height == 20_000


@needs_native
def test_two_recordings_at_once_are_refused(stand_in: dict[str, str], tmp_path: Path) -> None:
    out = run(
        stand_in,
        tmp_path,
        """
        recorder = CuptiRecorder(path, library)
        recorder.start()
        other = CuptiRecorder(path.with_name("other.ssc"), library)
        try:
            other.start()
        except RuntimeError as error:
            print(error)
        free.stand_in_launch(names[0], 10)
        recorder.stop()
        """,
    )
    assert out == "CUPTI is already recording in this process\n"
    assert not (tmp_path / "other.ssc").exists()
    assert read_files([tmp_path / "cupti.ssc"])["kernels"].height == 10


@needs_native
@pytest.mark.parametrize("moment", ["before", "while"])
def test_a_window_of_a_program_that_uses_cuda(stand_in: dict[str, str], tmp_path: Path, moment: str) -> None:
    # Given: a program that loads NVIDIA's driver before, or while, it is recorded
    load = "driver = ctypes.CDLL('libcuda.so.1')"
    names = "[(task / 'comm').read_text().strip() for task in Path('/proc/self/task').iterdir()]"
    file = "list((path.parent / 'runs').rglob('cupti.ssc'))"
    begun = f"while not {file} or 'stepscope-cuda' in {names}: time.sleep(0.01)"
    before, meanwhile = (load, "") if moment == "before" else ("", f"{load}\n            {begun}")
    run(
        stand_in,
        tmp_path,
        f"""
        import stepscope
        from stepscope.collect.cuda import cupti_collector
        cupti_collector.DEVICES = (Path("/"),)  # shows that the machine has a GPU, before its driver is loaded
        {before}
        with stepscope.profile(output=path.parent / "runs", analyse="later") as profile:
            {meanwhile}
            free.stand_in_launch(names[0], 500)
            profile.step()
        assert driver.stand_in_waits() == 1  # the GPU was waited for at the end, once
        """,
    )
    (path,) = (tmp_path / "runs").iterdir()
    (rank,) = Run(path).ranks
    described = rank.manifest["collectors"]["cupti"]
    assert (described["version"], described["cuda"]) == (130001, "13.0")
    assert "failed" not in described
    assert "capture/cupti.ssc" in rank.manifest["captures"]
    kernels = rank.tables["kernels"].collect()
    assert kernels.height == 500
    assert kernels["launch"].null_count() == 0
    assert set(kernels["blocks_per_sm"]) == {3.0}  # 1 x 2 x 3 blocks on two multiprocessors
    split = rank.result("step_trace_time")
    assert isinstance(split, pl.DataFrame)
    assert split["Computing"].sum() > 0


@needs_native
def test_cuda_profiler_from_block_to_log(stand_in: dict[str, str], tmp_path: Path) -> None:
    run(
        stand_in,
        tmp_path,
        """
        from stepscope.compat.fluid.cuda_profiler import cuda_profiler
        with cuda_profiler(str(path.with_name("log.csv"))):
            free.stand_in_launch(names[0], 3)
        try:
            with cuda_profiler(path.with_name("failed.txt"), "kvp", ["gridsize"]):
                free.stand_in_launch(names[1], 2)
                raise KeyError("the program's own")
        except KeyError:
            pass
        """,
    )
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[1] == "# CUDA_DEVICE 0 Stand-in"
    rows = [line.split(",") for line in lines if "_Z3addPf" in line]
    assert [row[2:11] for row in rows] == [["_Z3addPf", "3.000", "1.000", "1", "2", "3", "4", "5", "6"]] * 3
    # Without `conckerneltrace` kernels are asked for one by one, which this stand-in does not know.
    assert "gridsize" not in (tmp_path / "failed.txt").read_text().splitlines()[0]


class Calls:
    """The two callbacks as CUPTI calls them."""

    def __init__(self, buffers: CuptiBuffers) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        requested, completed = buffers.callbacks()
        self._request = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(requested)
        self._complete = ctypes.CFUNCTYPE(None, pointer, ctypes.c_uint32, pointer, size, size)(completed)

    def request(self) -> tuple[int | None, int]:
        address, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self._request(*(ctypes.addressof(value) for value in (address, size, most)))
        return address.value, size.value

    def complete(self, address: int | None, content: bytes) -> None:
        ctypes.memmove(address or 0, content, len(content))
        self._complete(None, 0, address, 1 << 12, len(content))


@pytest.fixture
def buffers() -> CuptiBuffers:
    layout = layout_of(1300)
    return CuptiBuffers({int(kind): size for kind, size in layout.sizes.items()}, {10: 104})


@needs_native
def test_buffers_come_back_in_order_and_are_used_again(buffers: CuptiBuffers) -> None:
    calls = Calls(buffers)
    buffers.open(1 << 12)
    first, second = calls.request(), calls.request()
    assert first[1] == second[1] == 1 << 12
    assert buffers.lent == 2
    calls.complete(second[0], b"two")
    calls.complete(first[0], b"first")
    taken = [buffers.take(), buffers.take()]
    assert taken == [(second[0], 3), (first[0], 5)]
    assert buffers.take() is None
    for address, _ in filter(None, taken):
        buffers.give_back(address)
    again = calls.request()[0]
    assert again in (first[0], second[0])
    buffers.close()
    calls.complete(again, b"")


@needs_native
def test_memory_is_bounded_and_nothing_is_lent_after_the_end(buffers: CuptiBuffers) -> None:
    calls = Calls(buffers)
    buffers.open(1 << 12)
    lent = [calls.request()[0] for _ in range(130)]
    assert sum(address is not None for address in lent) == 128
    assert buffers.refused == 2
    buffers.close()
    assert calls.request() == (None, 0)
    for address in filter(None, lent):
        calls.complete(address, b"late")
    assert buffers.lent == 0
    assert buffers.take() is None


@needs_native
def test_a_strange_buffer_is_left_alone(buffers: CuptiBuffers) -> None:
    calls = Calls(buffers)
    buffers.open(1 << 12)
    strange = ctypes.create_string_buffer(64)
    calls.complete(ctypes.addressof(strange), b"somebody else's")
    assert buffers.take() is None
    buffers.close()


@needs_native
def test_names_are_those_that_the_decoder_sees(buffers: CuptiBuffers) -> None:
    layout = layout_of(1300)
    kernels = [record(layout, Kind.CONCURRENT_KERNEL, start=1, end=2, name=0x1000 + n % 40) for n in range(300)]
    others = [record(layout, Kind.MEMCPY, start=1, end=2), record(layout, Kind.CONTEXT)]
    content = b"".join(kernels[:150] + others + kernels[150:])
    memory = ctypes.create_string_buffer(content, len(content))
    decoder = RecordDecoder(layout, LossLedger("file"))
    decoder.add(content, {})
    expected = set(decoder.of(Kind.CONCURRENT_KERNEL)["name"].tolist())
    assert set(buffers.names(ctypes.addressof(memory), len(content))) == expected
    # A damaged buffer ends the search, nothing more.
    damaged = content[: 216 * 10] + b"\xff" * 64 + content
    memory = ctypes.create_string_buffer(damaged, len(damaged))
    assert len(buffers.names(ctypes.addressof(memory), len(damaged))) == 10


def test_names_are_read_and_spelled_in_cplusplus() -> None:
    names = KernelNames()
    texts = [ctypes.create_string_buffer(text) for text in (b"_Z3addPf", b"main", b"x" * 5000)]
    pointers = [ctypes.addressof(text) for text in texts]
    assert names.new(pointers) == [
        (pointers[0], "_Z3addPf", "add(float*)"),
        (pointers[1], "main", "main"),
        (pointers[2], "x" * 5000, "x" * 5000),
    ]
    assert names.new(pointers) == []
    texts[1].value = b"new"
    assert names.new(pointers) == [(pointers[1], "new", "new")]
    assert names.new([0, 8, (1 << 64) - 8]) == []  # a wrong pointer costs its name, not the process
    names.close()
    names.close()


def test_without_a_gpu_it_says_so_and_loads_nothing() -> None:
    if cupti_library.driver() is not None or Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert CuptiCollector().available() == "this machine has no NVIDIA GPU"
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if "libcupti" in line]


def test_it_steps_aside_for_kineto(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert other_user() is None
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "Kineto" in str(other_user())
    monkeypatch.delitem(sys.modules, "torch")
    assert other_user() is None


def test_it_steps_aside_for_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert other_user() is None
    monkeypatch.setitem(sys.modules, "jax_plugins.xla_cuda13", ModuleType("jax_plugins.xla_cuda13"))
    assert "XLA" in str(other_user())


def test_sizes_are_those_of_the_real_library() -> None:
    """``cuptiActivityGetNextRecord`` of the installed CUPTI steps over records of every kind as the layout says."""
    try:
        library = cupti_library.load()
    except cupti_library.CuptiError as error:
        pytest.skip(str(error))
    handle = ctypes.CDLL(library.path)
    for kind, size in library.layout.sizes.items():
        buffer = record(library.layout, kind) + record(library.layout, Kind.RUNTIME)
        memory = ctypes.create_string_buffer(buffer, len(buffer))
        found = ctypes.c_void_p()
        for _ in range(2):
            code = handle.cuptiActivityGetNextRecord(memory, ctypes.c_size_t(len(buffer)), ctypes.byref(found))
            assert code == 0, kind
        assert found.value == ctypes.addressof(memory) + size, kind
