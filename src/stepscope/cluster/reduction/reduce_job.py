"""Captures of a job, in a directory or an object store → the summaries of its ranks, each reduced by itself.

What is written is a run directory without captures and tables: of each rank its manifest, which says where the captures
lie, and its summary. Done again, only those ranks are reduced whose captures have changed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from stepscope.cluster.rank_summary import RankSummary, decode, encode
from stepscope.cluster.reduction.addresses import RemoteFile, fetch, files_of, found_at, local_path
from stepscope.cluster.reduction.engines import Engine, share
from stepscope.cluster.reduction.rank_reduction import reduce
from stepscope.errors import InputError, NotATraceError
from stepscope.read import Capture, sniff
from stepscope.run import CaptureRun, RankRun, adopt, imported_manifest
from stepscope.trace.manifest import Manifest
from stepscope.trace.run_directory import RankDirectory, check_writable, make_private

#: Section of a rank's summary file that holds its columns for the job.
SECTION = "job"


@dataclass(frozen=True)
class RankToReduce:
    """One rank that is to be reduced, with all that a process elsewhere needs for it.

    Attributes:
        rank: Its number in the job.
        name: Name of its directory or capture.
        manifest: What it says of itself; its entry ``origin`` says where its captures lie, and of which version.
        captures: Its captures, on this machine.
        remote: Its files, elsewhere.
        directory: Its directory in a run, which has them.
        keep_in: Its directory in the result, if its files are to be kept there.
        steps: First and last step that count; None for all.
    """

    rank: int
    name: str
    manifest: Manifest
    captures: tuple[Capture, ...] = ()
    remote: tuple[RemoteFile, ...] = ()
    directory: Path | None = None
    keep_in: Path | None = None
    steps: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes that are read for it, as far as that is known without reading."""
        return sum(file.size for file in self.remote) + sum(capture.size for capture in self.captures)


def reduce_rank(work: RankToReduce) -> bytes:
    """Return the summary of a rank, encoded. Of one that cannot be read it holds the reason, and nothing else."""
    try:
        return encode(_reduced(work))
    except InputError as error:
        return faulty(work, error.message)
    except Exception as error:
        # One rank must not cost the others, whatever its files hold.
        if os.environ.get("STEPSCOPE_DEBUG"):
            raise
        return faulty(work, " ".join(f"Internal error: {type(error).__name__}: {error}".split()))


def faulty(work: RankToReduce, reason: str) -> bytes:
    """Return the summary, encoded, of a rank that cannot be read: it says why."""
    return encode(RankSummary(work.rank, {"directory": work.name, "fault": reason}))


def _reduced(work: RankToReduce) -> RankSummary:
    if work.directory is not None:
        run = RankRun(RankDirectory(work.directory), steps=work.steps)
        return reduce(run.tables_for_job(), run.manifest, directory=work.name)
    with _here(work) as captures:
        found = CaptureRun(list(captures), work.manifest, steps=work.steps).tables_for_job()
    return reduce(found, work.manifest, directory=work.name)


@contextmanager
def _here(work: RankToReduce) -> Iterator[Sequence[Capture]]:
    """Give the captures of a rank on this machine; what is fetched for that is removed, unless it is to be kept."""
    with tempfile.TemporaryDirectory(prefix="stepscope-") if work.remote else nullcontext("") as directory:
        captures: Sequence[Capture] = work.captures
        if work.remote:
            fetch(work.remote, Path(directory))
            captures = [capture for capture in sniff.look(Path(directory)) if not capture.fault]
            if any(one.ranks for one in captures):  # the heads, by which the ranks are told, do not show them
                message = f"{work.remote[0].address} is a timeline of several ranks."
                raise NotATraceError(message, "Copy it to this machine, and import the copy.")
        if work.keep_in is not None:
            shutil.rmtree(work.keep_in, ignore_errors=True)
            kept = RankDirectory(work.keep_in)
            adopt(list(captures), kept, world_size=work.manifest["world_size"])
            kept.write_manifest({**kept.read_manifest(), **work.manifest})
        yield captures


def works_at(traces: Sequence[str], *, keep_in: Path | None = None) -> list[RankToReduce]:
    """Return the ranks whose captures lie at paths or addresses, in order, as work.

    A capture that cannot be read, and whose rank no other capture is of, is named in the manifest of the first rank.

    Args:
        traces: Paths and addresses; several are the ranks of one job.
        keep_in: Directory of the job, if captures are to be kept there.

    Raises:
        InputError: One cannot be read, or no capture is there.
    """
    places: dict[Path, RemoteFile] = {}
    with tempfile.TemporaryDirectory(prefix="stepscope-") as directory:
        looks = []
        for number, trace in enumerate(traces):
            path = local_path(trace)
            if path is not None:
                # The workers of a cluster have another working directory.
                looks.append(sniff.look(path.absolute()))
            else:
                captures, found = found_at(trace, Path(directory) / str(number))
                looks.append(captures)
                places |= found
        ranks = sniff.ranks(looks)
        left_out = {
            str(places[one.root].address if one.root in places else one.root): {"loss": one.loss, "reason": one.fault}
            for one in ranks.left_out
        }
        lowest = min(ranks.captures)
        return [
            _work(rank, captures, places, ranks.world_size, left_out if rank == lowest else {}, keep_in)
            for rank, captures in sorted(ranks.captures.items())
        ]


def _work(
    rank: int,
    captures: Sequence[Capture],
    places: Mapping[Path, RemoteFile],
    world_size: int | None,
    left_out: Mapping[str, Mapping[str, str]],
    keep_in: Path | None,
) -> RankToReduce:
    manifest = imported_manifest(captures, rank, world_size, ())
    # Of captures elsewhere only the heads are here, for now.
    remote = [file for one in captures if one.all[0] in places for file in files_of(one, places)]
    if remote:
        roots, files = [file.address for file in remote], [(file.address, file.size, file.stamp) for file in remote]
    else:
        roots = [str(one.root.resolve()) for one in captures]
        paths = [path.resolve() for one in captures for path in one.all]
        files = [(str(path), path.stat().st_size, str(path.stat().st_mtime_ns)) for path in paths]
    manifest |= {"imported_from": roots[0], "origin": {"roots": roots, "files": [list(file) for file in files]}}
    if left_out:
        manifest["left_out"] = {name: dict(said) for name, said in left_out.items()}
    return RankToReduce(
        rank,
        f"rank{rank}",
        manifest,
        captures=() if remote else tuple(captures),
        remote=tuple(remote),
        keep_in=None if keep_in is None else keep_in.absolute() / f"rank{rank}",
    )


def reduce_job(
    traces: Sequence[str], output: Path, *, engine: Engine, shard: tuple[int, int] = (0, 1), keep: bool = False
) -> tuple[int, dict[str, str]]:
    """Reduce the ranks at paths or addresses into a directory of summaries.

    Args:
        traces: Paths and addresses.
        output: Directory of the job.
        engine: Where the ranks are reduced.
        shard: Number of this part of the ranks, from 0, and how many parts there are.
        keep: Whether the captures are kept there.

    Returns:
        How many ranks were reduced, and why some could not be, by their names.

    Raises:
        InputError: A path cannot be read, or no capture is there.
        OutputError: ``output`` cannot be written to.
        UsageError: The engine cannot be reached.
    """
    check_writable(output)
    mine = share(works_at(traces, keep_in=output if keep else None), shard)
    changed = [work for work in mine if not _is_fresh(work, output / work.name, keep=keep)]
    faults = {}
    for place, result in engine.map(reduce_rank, changed, sum(work.size for work in changed)):
        work = changed[place]
        content = faulty(work, result) if isinstance(result, str) else result
        _keep(work, output / work.name, content)
        if reason := decode(content).facts.get("fault"):
            faults[work.name] = str(reason)
    return len(changed), faults


def _is_fresh(work: RankToReduce, path: Path, *, keep: bool) -> bool:
    directory = RankDirectory(path)
    try:
        manifest = directory.read_manifest()
        if any(manifest.get(key) != work.manifest.get(key) for key in ("origin", "left_out")):
            return False
        if keep and not directory.capture.is_dir():
            return False
        kept = RankRun(directory).kept_section(SECTION)
        return kept is not None and "fault" not in decode(kept).facts
    except (InputError, ValueError):
        return False


def _keep(work: RankToReduce, path: Path, content: bytes) -> None:
    """Write manifest and summary of a rank."""
    directory = RankDirectory(path)
    make_private(path)
    directory.write_manifest(work.manifest)
    RankRun(directory).keep_section(SECTION, content)
