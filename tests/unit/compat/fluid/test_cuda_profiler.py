"""The log of CUDA's command line profiler, from CUPTI's buffers and other tools' captures; and clear refusals."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest

from stepscope.compat.fluid import cuda_log
from stepscope.compat.fluid.cuda_profiler import check_log_path, cuda_profiler, with_methods
from stepscope.errors import OutputError, UsageError
from stepscope.read import read_files
from stepscope.read.cupti.cupti_reader import open_capture
from stepscope.trace.cupti_layout import Kind
from stepscope.trace.losses import LossLedger
from tests.unit.cupti_build import File

EVERYTHING = (
    *("timestamp", "gpustarttimestamp", "gpuendtimestamp", "gridsize3d", "threadblocksize", "dynsmemperblock"),
    *("stasmemperblock", "regperthread", "memtransferdir", "memtransfersize", "memtransferhostmemtype", "streamid"),
    *("cacheconfigrequested", "cacheconfigexecuted", "countermodeaggregate", "conckerneltrace", "enableonstart 0"),
)
DEVICES = {0: "NVIDIA H100 80GB HBM3"}


@pytest.fixture
def work(tmp_path: Path) -> pl.DataFrame:
    file = File(tmp_path / "cupti.ssc")
    file.names([(0x10, "_Z6kernelPm", "kernel(unsigned long*)")])
    place = {"device": 0, "context": 1, "stream": 7}
    kernel = {"grid_x": 64, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
    file.buffer(
        file.record(Kind.RUNTIME, callback=211, start=10_000, end=17_300, process=1, thread=1, correlation=1),
        file.record(Kind.DRIVER, callback=307, start=11_000, end=12_000, process=1, thread=1, correlation=1),
        file.record(
            Kind.CONCURRENT_KERNEL,
            start=20_000,
            end=23_296,
            correlation=1,
            name=0x10,
            registers=16,
            static_shared=1024,
            dynamic_shared=512,
            cache=0x21,
            **kernel,
            **place,
        ),
        file.record(
            Kind.MEMCPY,
            start=30_000,
            end=41_776,
            copy_kind=1,
            source_kind=2,
            destination_kind=3,
            flags=1,
            bytes=4096,
            correlation=2,
            **place,
        ),
        file.record(
            Kind.MEMCPY, start=50_000, end=50_001, copy_kind=2, source_kind=3, destination_kind=1, bytes=8, **place
        ),
        file.record(Kind.MEMSET, start=60_000, end=60_500, bytes=8, memory_kind=3, **place),
    )
    ledger = LossLedger("file")
    named: pl.DataFrame = with_methods(open_capture(file.close(), ledger).named_work(ledger))
    return named


def test_the_log_of_the_documents_configuration(work: pl.DataFrame) -> None:
    config = cuda_log.parse(cuda_log.DEFAULT)
    lines = cuda_log.log(work, config, "csv", DEVICES).splitlines()
    assert lines == [
        "# CUDA_PROFILE_LOG_VERSION 2.0",
        "# CUDA_DEVICE 0 NVIDIA H100 80GB HBM3",
        "# CUDA_CONTEXT 1",
        "# CUDA_PROFILE_CSV 1",
        "# TIMESTAMPFACTOR 17979cfe362a4e20",
        "gpustarttimestamp,gpuendtimestamp,method,gputime,cputime,gridsizeX,gridsizeY,gridsizeZ,"
        "threadblocksizeX,threadblocksizeY,threadblocksizeZ,occupancy,streamid",
        "17979cfe362a4e20,17979cfe362a5b00,_Z6kernelPm,3.296,7.300,64,2,1,128,1,1,1.000,7",
        "17979cfe362a7530,17979cfe362aa330,memcpyHtoDasync,11.776,,,,,,,,,7",
        "17979cfe362ac350,17979cfe362ac351,memcpyDtoH,0.001,,,,,,,,,7",
        "17979cfe362aea60,17979cfe362aec54,memset,0.500,,,,,,,,,7",
    ]
    assert int("17979cfe362a4e20", 16) == 1_700_000_000_000_000_000 + 20_000


def test_every_option_in_the_profilers_order(work: pl.DataFrame) -> None:
    lines = cuda_log.log(work, cuda_log.parse(EVERYTHING), "csv", DEVICES).splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert list(rows[0]) == [
        *("timestamp", "gpustarttimestamp", "gpuendtimestamp", "method", "gputime", "cputime"),
        *("gridsizeX", "gridsizeY", "gridsizeZ", "threadblocksizeX", "threadblocksizeY", "threadblocksizeZ"),
        *("dynsmemperblock", "stasmemperblock", "regperthread", "occupancy", "streamid"),
        *("cacheconfigexecuted", "cacheconfigrequested"),
        *("memtransfersize", "memtransferdir", "memtransferhostmemtype"),
    ]
    kernel, up, down, _ = rows
    assert (kernel["timestamp"], up["timestamp"]) == ("0.000", "10.000")
    assert (kernel["dynsmemperblock"], kernel["stasmemperblock"], kernel["regperthread"]) == ("512", "1024", "16")
    assert (kernel["cacheconfigexecuted"], kernel["cacheconfigrequested"]) == ("2", "1")
    assert (up["memtransfersize"], up["memtransferdir"], up["memtransferhostmemtype"]) == ("4096", "0", "1")
    assert (down["memtransfersize"], down["memtransferdir"], down["memtransferhostmemtype"]) == ("8", "1", "0")
    assert kernel["memtransfersize"] == ""


def test_key_value_pairs(work: pl.DataFrame) -> None:
    config = cuda_log.parse(["gridsize", "threadblocksize", "streamid", "memtransferdir"])
    lines = cuda_log.log(work, config, "kvp", DEVICES).splitlines()
    assert "# CUDA_PROFILE_CSV 1" not in lines
    assert lines[-4:] == [
        "method=[ _Z6kernelPm ] gputime=[ 3.296 ] cputime=[ 7.300 ] gridsize=[ 64, 2 ] threadblocksize=[ 128, 1, 1 ] "
        "occupancy=[ 1.000 ] streamid=[ 7 ]",
        "method=[ memcpyHtoDasync ] gputime=[ 11.776 ] streamid=[ 7 ] memtransferdir=[ 0 ]",
        "method=[ memcpyDtoH ] gputime=[ 0.001 ] streamid=[ 7 ] memtransferdir=[ 1 ]",
        "method=[ memset ] gputime=[ 0.500 ] streamid=[ 7 ]",
    ]


def test_counters_that_are_not_read_are_a_warning(work: pl.DataFrame) -> None:
    config = cuda_log.parse([" gpustarttimestamp ", "active_warps", "conckerneltrace", "", "profilelogformat KVP"])
    assert config.unknown == ("active_warps",)
    assert (config.concurrent, config.format) == (True, "kvp")
    lines = cuda_log.log(work, config, "csv", DEVICES, ["something was lost"]).splitlines()
    warnings = [line for line in lines if line.startswith("NV_Warning")]
    assert warnings == [
        "NV_Warning: Ignoring the invalid profiler config option: active_warps",
        "NV_Warning: something was lost",
    ]


def test_no_work_is_a_log_without_rows() -> None:
    empty = pl.DataFrame(schema={"ts": pl.Int64, "dur": pl.Int64, "method": pl.String})
    for mode in ("csv", "kvp"):
        lines = cuda_log.log(empty, cuda_log.parse(cuda_log.DEFAULT), mode, DEVICES).splitlines()
        assert lines[1] == "# CUDA_DEVICE 0 NVIDIA H100 80GB HBM3"
        assert lines[-1].startswith("gpustarttimestamp,gpuendtimestamp,method,gputime")


@pytest.mark.parametrize("mode", ["csv", "kvp"])
def test_the_log_of_a_recorded_gpu(shared_data: Path, mode: str) -> None:
    # Given: what Kineto recorded on a real GPU
    tables = read_files(
        [shared_data / "kineto/hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz"]
    )
    work = cuda_log.work_of(tables)
    lines = cuda_log.log(work, cuda_log.parse(cuda_log.DEFAULT), mode, {0: "NVIDIA A100"}).splitlines()
    rows = [line for line in lines if not line.startswith(("#", "gpustart", "NV_"))] if mode == "csv" else []
    # Then: every piece of work is a row with its time and size, in order
    kernels = tables["kernels"].join(tables["spans"].select("ts", "dur", span="id"), on="span").sort("ts")
    assert kernels.height > 70
    if mode == "kvp":
        assert sum("method=[ " in line for line in lines) == kernels.height
        return
    found = list(csv.reader(rows))
    assert len(found) == kernels.height
    for row, kernel in zip(found, kernels.iter_rows(named=True), strict=True):
        start, end, method, gpu, _, *sides = row
        assert (int(start, 16), int(end, 16)) == (kernel["ts"], kernel["ts"] + kernel["dur"])
        assert float(gpu) == kernel["dur"] / 1000
        if kernel["grid"] is not None:
            assert [int(side) for side in sides[:6]] == [*kernel["grid"], *kernel["block"]]
        else:
            assert method.startswith("mem")
            assert sides[:6] == [""] * 6
        assert int(sides[-1]) == kernel["stream"]


def test_a_bad_mode_is_the_originals_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^The output mode must be 'kvp' or 'csv'\.$"), cuda_profiler("log", "json"):
        pass


def test_without_a_gpu_nothing_is_made(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    target = tmp_path / "cuda_profiler.txt"
    entered = False
    with pytest.raises(UsageError) as caught, cuda_profiler(str(target), "csv"):
        entered = True
    assert not entered
    assert not list(tmp_path.iterdir())
    assert str(caught.value).count("\n") == 0
    assert "NVIDIA" in str(caught.value)


def test_a_path_that_cannot_be_is_refused() -> None:
    with pytest.raises(OutputError):
        check_log_path(Path("/nowhere/at/all.txt"))
    with pytest.raises(OutputError):
        check_log_path(Path("/"))
