"""Reduce every rank of a job to its summary, from captures in directories or at addresses (s3://…, gs://…).

The result is a run of at most 100 KB a rank, which `stepscope merge` reads. Captures are not copied: files at an
address are fetched rank by rank and given up, unless --keep. Done again, only ranks whose captures changed are reduced.

Ranks are reduced by one process for each core of this machine; by the workers of a Dask cluster; or in shards, by
processes that need not know each other, such as those of an array of Slurm or Kubernetes jobs:

  srun --ntasks 16 sh -c 'stepscope reduce TRACES --output JOB --shard $SLURM_PROCID/$SLURM_NTASKS'
  stepscope merge JOB
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from stepscope.analyse.quantities import count_text
from stepscope.cli import options

HELP = "reduce the ranks of a job to their summaries, here or on a cluster"
#: Most ranks that are named.
_MOST_NAMED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``reduce``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "trace", nargs="+", help="trace file, directory of traces, or address (s3://BUCKET/PATH); several are one job"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="JOB", help="directory of the job")
    parser.add_argument(
        "--engine",
        choices=("serial", "processes", "dask"),
        default="",
        help="where ranks are reduced (default: processes for 64 ranks or 64 MiB and more, else serial)",
    )
    parser.add_argument(
        "--workers", type=_positive, metavar="N", help="number of processes (default: one for each core)"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="Dask's scheduler, such as tcp://10.0.0.1:8786")
    parser.add_argument(
        "--shard",
        type=_shard,
        default=(0, 1),
        metavar="I/N",
        help="reduce only every Nth rank from the Ith on; I counts from 0",
    )
    parser.add_argument("--keep", action="store_true", help="keep the captures in the job, for results of single ranks")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the directory only")


def _positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    message = f"{text!r} is not a number from 1"
    raise argparse.ArgumentTypeError(message)


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match and int(match[1]) < int(match[2]):
        return int(match[1]), int(match[2])
    message = f"{text!r} is not a shard; write I/N, where I counts from 0 to N - 1"
    raise argparse.ArgumentTypeError(message)


def execute(arguments: argparse.Namespace) -> int:
    """Reduce the ranks, and say what could not be read."""
    # Many small frames: threads of Polars would cost more than they do.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from stepscope.cluster.reduction.engines import Engine
    from stepscope.cluster.reduction.reduce_job import reduce_job

    engine = Engine(arguments.engine, arguments.workers, arguments.scheduler)
    count, faults = reduce_job(
        arguments.trace, arguments.output, engine=engine, shard=arguments.shard, keep=arguments.keep
    )
    for name, reason in list(faults.items())[:_MOST_NAMED]:
        sys.stderr.write(f"stepscope: {name} is left out: {reason}\n")
    if len(faults) > _MOST_NAMED:
        sys.stderr.write(f"stepscope: {len(faults) - _MOST_NAMED} more ranks are left out.\n")
    console = options.output_console()
    if arguments.quiet:
        console.print(str(arguments.output), soft_wrap=True, markup=False)
    else:
        said = count_text(count, "rank") if count or faults else "nothing: no rank is new or changed"
        console.print(f" reduced      {said}", markup=False)
        console.print(f" next         stepscope merge {arguments.output}", soft_wrap=True, markup=False)
    return 0
