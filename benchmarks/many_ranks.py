"""The cost of one more rank: CPU seconds and Polars plans of importing it, in a process that already runs.

python benchmarks/many_ranks.py [--ranks 20] [--events 1000 10000]
python benchmarks/many_ranks.py --phases        # what the import of a rank consists of
python benchmarks/many_ranks.py --hta           # HolisticTraceAnalysis for the same ranks and the questions it answers

Every rank is a Kineto file of a training with data parallelism on a GPU: steps, operators that launch kernels,
collectives, memory and arrows. For stepscope it measures everything that ``stepscope import`` does: copying the file,
tables written as Parquet, results written as CSV and JSON, the summary; and what ``stepscope reduce`` does for the job.
The first rank, which includes imports, is left out. CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

_BASE_US = 1_700_000_000_000_000.0
_OPERATORS = ("aten::linear", "aten::addmm", "aten::relu", "aten::native_batch_norm", "aten::mul", "aten::add_")


class Trace:
    """The events of one rank.

    Args:
        rank: Rank of the process.
        world_size: Number of ranks.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.events: list[dict[str, Any]] = []
        self.now, self.device, self.number = 10.0, 20.0, 0
        for process, label in ((100, "CPU"), (0, "GPU 0")):
            for name, args in (("process_name", {"name": "python"}), ("process_labels", {"labels": label})):
                self.events.append({"ph": "M", "name": name, "pid": process, "tid": 0, "ts": 0, "args": args})

    def complete(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:  # noqa: ANN401
        """Add a complete event on the main thread, or of a device's category on stream 7."""
        on_device = category in ("kernel", "gpu_memcpy")
        process, thread = (0, 20 if "nccl" in name else 7) if on_device else (100, 101)
        event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": round(ts, 3)}
        self.events.append({**event, "dur": round(dur, 3), "args": args})

    def launch(self, kernel: str, dur: float, **args: Any) -> None:  # noqa: ANN401
        """Add a call that launches a kernel, the kernel, and the arrow between them."""
        self.number += 1
        number = {"correlation": self.number, "External id": self.number}
        self.complete("cuda_runtime", "cudaLaunchKernel", self.now + 2, 3, **number)
        self.device = max(self.device + 1, self.now + 6)
        stream = 20 if "nccl" in kernel else 7
        grid = {"grid": [64, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 1024}
        place = {"device": 0, "stream": stream, "context": 1, **grid}
        self.complete("kernel", kernel, self.device, dur, **number, **place, **args)
        for phase, process, thread, ts in (("s", 100, 101, self.now + 2), ("f", 0, stream, self.device)):
            arrow = {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": self.number, "pid": process, "tid": thread}
            self.events.append({**arrow, "ts": round(ts, 3), "bp": "e"})
        self.device += dur

    def operator(self, name: str, place: int) -> None:
        """Add an operator with a kernel, and the memory it takes."""
        said = {"External id": self.number + 1, "Sequence number": place, "Fwd thread id": 0, "Ev Idx": self.number}
        shapes = {"Input Dims": [[32, 256], [256, 256]], "Input type": ["float", "float"]}
        self.complete("cpu_op", name, self.now, 12, **said, **shapes)
        memory = {
            "Addr": 4096 * place,
            "Bytes": 4096,
            "Device Type": 1,
            "Device Id": 0,
            "Total Allocated": 4096 * place,
        }
        instant = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 101}
        self.events.append({**instant, "ts": round(self.now + 1, 3), "args": {**memory, "Total Reserved": 1 << 24}})
        self.launch(f"void at::native::{name[6:]}_kernel<float>(int, float*)", 9.0 + place % 5)
        self.now += 14

    def collective(self, place: int) -> None:
        """Add a gradient's all-reduce."""
        said = {"Collective name": "allreduce", "In msg nelems": 65536, "Out msg nelems": 65536, "Group size": 8}
        said |= {"dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}
        self.complete(
            "cpu_op", "record_param_comms", self.now, 12, **{"External id": self.number + 1, "Seq": place}, **said
        )
        self.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20.0, **said)
        self.now += 14

    def step(self, number: int, operators: int) -> None:
        """Add one step."""
        begin = self.now
        self.complete("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, 15)
        self.now += 20
        for place in range(operators):
            self.operator(_OPERATORS[place % len(_OPERATORS)], place)
            if place % 10 == 9:
                self.collective(place)
        self.complete("user_annotation", "Optimizer.step#SGD.step", self.now, 10)
        self.complete("cuda_runtime", "cudaDeviceSynchronize", self.now + 12, max(1.0, self.device - self.now))
        self.now = max(self.now + 15, self.device + 5)
        self.complete("user_annotation", f"ProfilerStep#{number}", begin, self.now - begin)

    def write(self, path: Path) -> None:
        """Write the file."""
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 1 << 36, "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world_size},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": int(_BASE_US * 1000),
            "traceEvents": self.events,
        }
        path.write_text(json.dumps(document))


def write_rank(path: Path, events: int, *, rank: int = 0, world_size: int = 1) -> None:
    """Write a Kineto file of one rank: four steps with about this many events."""
    trace = Trace(rank, world_size)
    operators = max(1, round((events / 4 - 4) / 6.5))
    for number in range(4):
        trace.step(number, operators)
    trace.write(path)


class Plans:
    """Counts the plans that Polars runs, also those of eager calls and of files; plans run together count once."""

    _METHODS = ("collect", "_collect_eager", "sink_parquet", "sink_csv")

    def __init__(self) -> None:
        self.count = 0
        methods = {name: getattr(pl.LazyFrame, name) for name in self._METHODS if hasattr(pl.LazyFrame, name)}
        self._originals: list[tuple[Any, str, Any]] = [(pl.LazyFrame, name, method) for name, method in methods.items()]
        self._originals.append((pl, "collect_all", pl.collect_all))

    def __enter__(self) -> Plans:
        for owner, name, original in self._originals:
            setattr(owner, name, self._counting(original))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the original
            self.count += not options.get("lazy")
            return original(*arguments, **options)

        return call


def import_ranks(files: list[Path], output: Path) -> Iterator[float]:
    """Import the ranks of one run, and return the CPU seconds of each."""
    from stepscope.cli.import_ import imported
    from stepscope.cli.outputs import write
    from stepscope.report import registry

    formats = registry.select("csv,json")
    before = time.process_time()
    with imported(files, output, quiet=True) as run:
        copied = (time.process_time() - before) / len(files)
        for rank in run.ranks:
            before = time.process_time()
            write(rank, formats, deep=False)
            _ = rank.summary
            yield copied + time.process_time() - before


def import_in_phases(files: list[Path], output: Path) -> dict[str, float]:
    """Import the ranks of one run phase after phase, and return the least CPU seconds that a rank takes for each."""
    from stepscope.advise.rank_findings import rank_findings
    from stepscope.cli.import_ import imported
    from stepscope.cli.outputs import write
    from stepscope.report import registry
    from stepscope.report.rank_answers import RankAnswers

    least: dict[str, float] = {}

    def timed(phase: str, work: Callable[[], object]) -> None:
        before = time.process_time()
        work()
        least[phase] = min(least.get(phase, np.inf), time.process_time() - before)

    with imported(files, output, quiet=True) as run:
        for rank in run.ranks:
            timed("look at the capture", partial(getattr, rank, "made_of"))
            timed("read it, keep tables", partial(getattr, rank, "shown"))
            timed("findings and summary", partial(rank_findings, rank))
            timed("results", partial(dict, RankAnswers(rank, deep=False)))
            timed("write CSV and JSON", partial(write, rank, registry.select("csv,json"), deep=False))
    return least


def reduce_ranks(files: list[Path]) -> Iterator[float]:
    """Reduce the ranks for the job, and return the CPU seconds of each."""
    from stepscope.cluster.reduction.reduce_job import reduce_rank, works_at

    before = time.process_time()
    works = works_at([str(file) for file in files])
    found = (time.process_time() - before) / len(files)
    for work in works:
        before = time.process_time()
        reduce_rank(work)
        yield found + time.process_time() - before


def ask_hta(files: list[Path]) -> Iterator[float]:
    """Run the standard analyses of HolisticTraceAnalysis on every rank, and return the CPU seconds of each."""
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    for rank, path in enumerate(files):
        before = time.process_time()
        trace = TraceAnalysis(trace_files={rank: str(path)}, trace_dir="", include_last_profiler_step=True)
        trace.get_temporal_breakdown(visualize=False)
        trace.get_comm_comp_overlap(visualize=False)
        trace.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
        trace.get_idle_time_breakdown(ranks=[rank], visualize=False)
        trace.get_cuda_kernel_launch_stats(ranks=[rank], visualize=False)
        yield time.process_time() - before


def measure(events: int, ranks: int, directory: Path, *, hta: bool, phases: bool) -> None:
    """Print the cost of one more rank with this many events."""
    files = [directory / f"rank{rank}_{events}.json" for rank in range(ranks)]
    for rank, path in enumerate(files):
        write_rank(path, events, rank=rank, world_size=ranks)

    def added(costs: Callable[[], Iterator[float]]) -> float:
        return float(np.median(list(costs())[1:]))

    if phases:
        for phase, least in import_in_phases(files, directory / "phases").items():
            print(f"{phase:>24}: {1000 * least:5.1f} ms CPU of the fastest rank")
    ours = added(lambda: import_ranks(files, directory / "timed"))
    with Plans() as plans:
        list(import_ranks(files, directory / "counted"))
    job = added(lambda: reduce_ranks(files))
    line = f"{events:>8,} events per rank: {1000 * ours:7.1f} ms CPU, {plans.count / ranks:5.0f} plans"
    line += f"; for the job {1000 * job:5.1f} ms"
    if hta:
        theirs = added(lambda: ask_hta(files))
        line += f"; HolisticTraceAnalysis {1000 * theirs:7.1f} ms CPU, {theirs / ours:.1f}x, {theirs / job:.1f}x"
    print(line)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=20)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--hta", action="store_true", help="measure HolisticTraceAnalysis as well")
    parser.add_argument("--phases", action="store_true", help="say what the import of a rank consists of, too")
    options = parser.parse_args()
    for events in options.events:
        with tempfile.TemporaryDirectory() as directory:
            measure(events, options.ranks, Path(directory), hta=options.hta, phases=options.phases)


if __name__ == "__main__":
    main()
