"""How the ranks of a job agree on the steps of a window through files in a shared directory.

Rank 0 proposes a window. Every rank that sees the proposal in time answers that it will read the verdict before its
step ``look``, and does so. The first rank to get there writes the verdict: *go* if every rank has answered, *no*
otherwise. Only one rank can write it, because ``O_EXCL`` makes the file's creation atomic; so all ranks read the same
verdict, and all of them record or none does. After a *no*, rank 0 proposes later steps. No rank waits while it trains.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.collect.ranks import JobRank, find_job, process_key
from stepscope.trace.run_directory import make_private

#: Directory of the ranks' files, beside the file that users edit.
FOLDER = ".stepscope-ranks"
_PROPOSAL = "proposal.json"

#: Seconds within which the writer of a verdict, having created the file, writes its one word.
_WRITTEN = 2.0
#: Seconds after which another machine's proposal counts as an older job's, and a job's folder is removed.
_FRESH, _KEPT = 600.0, 86_400.0


@dataclass(frozen=True)
class Proposal:
    """A window that rank 0 proposes.

    Attributes:
        start: First step recorded.
        stop: Last step recorded.
        values: The switches of the window.
        token: Unique name of the proposal.
        author: Host and process of rank 0, and the start time of the process.
    """

    start: int
    stop: int
    values: dict[str, Any]
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    author: tuple[str, int, str] = ("", 0, "")

    @property
    def look(self) -> int:
        """The step before which every rank reads the verdict: one before the window, if the job has one."""
        return max(self.start - 1, min(self.start, 2))

    @property
    def empty(self) -> bool:
        """Whether it proposes nothing and only shows that rank 0 is alive."""
        return self.start < 0


NOTHING = Proposal(-1, -1, {}, token="")


class Agreement:
    """One rank's side of the agreement, in a directory that all ranks share.

    Raises:
        OSError: The directory cannot be made.
    """

    def __init__(self, directory: Path, place: JobRank) -> None:
        self._place = place
        self._folder = directory / FOLDER / find_job().digest
        self._seen = ""
        make_private(self._folder)
        if place.rank == 0:
            # An older run of this job has the same folder, and its answers would count.
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)
            for folder in self._folder.parent.iterdir():
                if folder != self._folder and time.time() - folder.stat().st_mtime > _KEPT:
                    shutil.rmtree(folder, ignore_errors=True)

    def propose(self, proposal: Proposal) -> Proposal:
        """Write a proposal for the other ranks and return it, signed. Only rank 0 does."""
        author = (socket.gethostname(), *process_key(os.getpid()))
        signed = replace(proposal, author=author)
        temporary = self._folder / f".{_PROPOSAL}"
        temporary.write_text(json.dumps(asdict(signed)), encoding="utf-8")
        temporary.replace(self._folder / _PROPOSAL)
        return signed

    def news(self) -> Proposal | None:
        """Return a proposal that this rank has not seen, if any."""
        proposal = self._read()
        if proposal is None or proposal.token == self._seen:
            return None
        self._seen = proposal.token
        return None if proposal.empty else proposal

    def wait_for_opening(self, patience: float) -> bool:
        """Wait for the first proposal of rank 0; only while a job begins."""
        return _wait(lambda: self._read() is not None, patience)

    def answer(self, proposal: Proposal, number: int) -> bool:
        """Answer a proposal in step ``number``, and return whether this rank can still read its verdict in time."""
        timely = number <= proposal.look
        text = "ok" if timely else f"late {number}"
        (self._folder / f"{proposal.token}.{self._place.rank}").write_text(text, encoding="utf-8")
        return timely

    def late(self, proposal: Proposal) -> int:
        """Return the highest step in which a rank saw the proposal too late; 0 if none did."""
        answers = [_text(path) for path in self._folder.glob(f"{proposal.token}.[0-9]*")]
        return max((int(text[5:]) for text in answers if text.startswith("late ")), default=0)

    def decide(self, proposal: Proposal, patience: float = 0.0) -> bool:
        """Return the verdict, and make it if it does not exist: go if every rank has answered in time.

        Args:
            proposal: The proposal.
            patience: Seconds to wait for answers; 0 in a training loop.
        """
        _wait(lambda: self._verdict(proposal).exists() or self._all_answered(proposal), patience)
        return self._settle(proposal, go=self._all_answered(proposal))

    def refuse(self, proposal: Proposal) -> None:
        """Make the verdict *no* unless a verdict exists."""
        self._settle(proposal, go=False)

    def refused(self, proposal: Proposal) -> bool:
        """Return whether the verdict exists and is *no*."""
        return self._verdict(proposal).exists() and not self._settle(proposal, go=False)

    def _all_answered(self, proposal: Proposal) -> bool:
        ranks = range(self._place.world_size)
        return all(_text(self._folder / f"{proposal.token}.{rank}") == "ok" for rank in ranks)

    def _settle(self, proposal: Proposal, *, go: bool) -> bool:
        path = self._verdict(proposal)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            _wait(lambda: _text(path).endswith("\n"), _WRITTEN)
            return _text(path) == "go\n"
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("go\n" if go else "no\n")
        return go

    def _verdict(self, proposal: Proposal) -> Path:
        return self._folder / f"{proposal.token}.verdict"

    def _read(self) -> Proposal | None:
        """Return the proposal, if the rank 0 that wrote it is alive."""
        try:
            document = json.loads((self._folder / _PROPOSAL).read_text(encoding="utf-8"))
            proposal = Proposal(**{**document, "author": tuple(document["author"])})
            age = time.time() - (self._folder / _PROPOSAL).stat().st_mtime
        except (OSError, ValueError, TypeError, KeyError):
            return None
        host, process, started = proposal.author
        if host == socket.gethostname():
            return proposal if process_key(process) == (process, started) else None
        return proposal if age < _FRESH or proposal.token == self._seen else None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def _wait(condition: Callable[[], bool], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True
