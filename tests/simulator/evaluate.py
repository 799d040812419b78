"""How well stepscope names the faults of simulated jobs: ``python -m tests.simulator.evaluate --level hard``.

Writes each job, reads it as a user would, and compares findings and clocks with the truth.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

import stepscope
from stepscope.advise.job_findings import job_findings
from stepscope.cluster.clocks import to_job_time
from tests.simulator.host_clocks import EPOCH
from tests.simulator.jobs import TRUTH
from tests.simulator.random_faults import LEVELS, ImpossibleFaultError, random_job
from tests.simulator.scoring import ClockError, FindingDict, Verdict, judge, report, report_clocks, true_clocks
from tests.simulator.shapes import KINDS, random_shape


def found_in(directory: Path) -> tuple[list[FindingDict], pl.DataFrame]:
    """Return what stepscope finds in a directory of captures, and the clocks of its ranks."""
    job = stepscope.job(directory)
    return [msgspec.to_builtins(finding) for finding in job_findings(job)], job.clocks


def clock_error(truth: dict[str, Any], clocks: pl.DataFrame) -> ClockError:
    """Return how wrong aligned times are: by rank, the largest error at the begin, in the middle and at the end.

    All clocks of a component together may be wrong by any time and rate: only how they differ from each other counts.
    So errors are those against the reference, whose uncertainty is 0, and those against the median of all.
    """
    known = clocks.filter(pl.col("offset_ns").is_not_null()).sort("rank")
    stated = known["uncertainty_ns"].cast(pl.Float64).fill_null(0).to_numpy()
    component = known["component"].to_numpy() if "component" in known.columns else np.zeros(len(known))
    shape, clock_of = truth["shape"], true_clocks(truth)
    to_reference, to_median = np.zeros(len(known)), np.zeros(len(known))
    for moment in np.linspace(0, truth["step_ns"] * shape["steps"], 3):
        shown = [int(clock_of[rank].shows(np.array([moment]))[0]) + EPOCH for rank in known["rank"]]
        frame = pl.DataFrame({"rank": known["rank"], "ts": pl.Series(shown, dtype=pl.Int64)})
        aligned = to_job_time(frame, clocks, "ts")["ts"].to_numpy() - EPOCH - moment
        for one in np.unique(component):
            mine = component == one
            middle = np.median(aligned[mine])
            first = aligned[mine & (stated == 0)]
            reference = first[0] if len(first) else middle
            to_median[mine] = np.maximum(to_median[mine], np.abs(aligned[mine] - middle))
            to_reference[mine] = np.maximum(to_reference[mine], np.abs(aligned[mine] - reference))
    unstated = len(clocks) - len(known)
    jitter = shape["noise"]["jitter_ns"]
    return ClockError(tuple(to_reference.tolist()), tuple(to_median.tolist()), tuple(stated.tolist()), unstated, jitter)


def evaluate(directory: Path) -> tuple[Verdict, ClockError]:
    """Return how stepscope does on one written job."""
    truth = msgspec.json.decode((directory / TRUTH).read_bytes())
    findings, clocks = found_in(directory)
    return judge(truth, findings), clock_error(truth, clocks)


def written(options: argparse.Namespace, parent: Path) -> Iterator[Path]:
    """Write the jobs that the command line asks for, and return their directories, one after another.

    Of a seed whose job cannot have the fault that is asked for, none is written; standard error says so.
    """
    for seed in range(options.seed, options.seed + options.jobs):
        directory = parent / f"job{seed}"
        try:
            job = random_job(random_shape(seed, options.ranks, options.kind), options.level, options.fault)
        except ImpossibleFaultError as error:
            print(f"\nseed {seed}: {error}", file=sys.stderr, flush=True)
            continue
        job.write(directory)
        yield directory


def main() -> None:
    """Read the command line, evaluate, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1_000, help="seed of the first job")
    parser.add_argument("--level", choices=[*LEVELS, "healthy"], default="easy")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--fault", default="", help="only this fault")
    parser.add_argument("--directory", type=Path, help="evaluate the jobs that lie in this directory instead")
    options = parser.parse_args()
    verdicts, clocks, begin = [], [], time.process_time()
    with tempfile.TemporaryDirectory() as parent:
        jobs = sorted(options.directory.iterdir()) if options.directory else written(options, Path(parent))
        for directory in jobs:
            verdict, error = evaluate(directory)
            if options.directory is None:
                shutil.rmtree(directory)
            verdicts.append(verdict)
            clocks.append(error)
            mark = "." if verdict.named else "x"
            print(mark, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if verdicts:
        print("\n".join([*report(verdicts), *report_clocks(clocks)]))
    print(f"{len(verdicts)} jobs, {time.process_time() - begin:.0f} s of CPU")


if __name__ == "__main__":
    main()
