"""At the end of a job, its first rank waits for the results of the others, for a bounded time, and shows the job's."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.collect.error_stream import say
from stepscope.collect.session.background import run_report
from stepscope.errors import InputError
from stepscope.trace import job_ranks
from stepscope.trace.run_directory import RankDirectory

#: Seconds after the results of the first rank for which it waits for those of the others; docs/many-ranks.md says so.
PATIENCE = 10.0
#: Seconds between two looks at the directory, which may lie on a server.
_LOOK = 0.1


@dataclass(frozen=True)
class OtherRanks:
    """What has become of the other ranks of a run.

    Attributes:
        late: Ranks that are there, and had no results at the end of the wait.
        absent: Ranks of which nothing is there.
    """

    late: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()


def show_results(rank: Path, ranks: int, *, speak: bool, first: Sequence[str] = ()) -> None:
    """Compute the results of this rank and show them; those of a job when the others have computed theirs.

    Args:
        rank: Directory of this rank.
        ranks: Number of ranks in its job.
        speak: Whether to show anything: of a job, the first rank does.
        first: Further arguments of the first rank's ``stepscope report``.

    Raises:
        OSError: The process that computes cannot be started.
    """
    if not speak or ranks == 1:
        run_report(rank, *([] if speak else ["--quiet"]), *(first if ranks == 1 else ()))
        return
    run_report(rank, "--quiet")
    run = rank.parent
    others = wait_for_others(run, ranks, 0)
    run_report(run, *first)
    for numbers, what in ((others.late, "not complete yet"), (others.absent, "not there")):
        if numbers:
            whose = f"{'rank' if len(numbers) == 1 else 'ranks'} {job_ranks.listed(list(map(str, numbers)))}"
            say(f"After {PATIENCE:.0f} s, the results of {whose} are {what}.")
    if others.absent:
        say(f"Ranks of a machine with a file system of its own record there: copy their folders to {run}.")
    if others.late or others.absent:
        say(f"To show the job again: stepscope report {shlex.quote(str(run))}")


def wait_for_others(run: Path, world_size: int, own: int, seconds: float = PATIENCE) -> OtherRanks:
    """Wait until every other rank of a run has its results, or can have none because its process was killed.

    Args:
        run: Directory of the run.
        world_size: Number of ranks.
        own: Rank of this process.
        seconds: How long to wait at most.
    """
    until = time.monotonic() + seconds
    waiting = [rank for rank in range(world_size) if rank != own]
    while waiting := list(_not_ready(run, waiting)):
        if time.monotonic() >= until:
            break
        time.sleep(_LOOK)
    late = tuple(rank for rank in waiting if (run / f"rank{rank}").is_dir())
    return OtherRanks(late, tuple(sorted({*waiting} - {*late})))


def _not_ready(run: Path, ranks: list[int]) -> Iterator[int]:
    for rank in ranks:
        directory = RankDirectory(run / f"rank{rank}")
        if not directory.summary_path.exists() and not _was_killed(directory):
            yield rank


def _was_killed(directory: RankDirectory) -> bool:
    """Return whether a rank is known to have ended without results: its process ran on this machine, and is gone."""
    try:
        manifest = directory.read_manifest()
    except InputError:
        return False
    process = manifest.get("process")
    if manifest.get("host") != socket.gethostname() or type(process) is not int:
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2]
    except FileNotFoundError:
        return Path("/proc/self/stat").exists()
    except OSError:  # it is just ending, or another user's
        return False
    return state.startswith(("Z", "X"))  # it has ended; its parent does not know yet
