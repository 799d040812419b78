"""The run directory: the contract between the training process and everything after it.

::

    <output>/<worker>_<time>/               0700; one capture
      rank0/ manifest.json                  who, where, when, options, clock anchors, collectors, format version
             capture/                       what collectors wrote, untouched
             tables/ *.parquet              derived, rebuildable
             results/                       the deliverables
      rank1/ …
      cluster/                              results over all ranks

The standard library only: the training process imports this module.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.errors import DamagedTraceError, FormatVersionError, InputError, NotARunError, OutputError
from stepscope.trace.manifest import Manifest, decode

#: Version of the layout and of the tables; raised when either changes so that an older stepscope could misread it.
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
#: In a directory of derived files: what those of each format were made of.
WRITTEN = ".written.json"
#: File in `capture/` with the steps, spans and counters of the window.
JOURNAL = "journal.ssj"
#: File in `capture/` with the times of all steps of the program, in the format of the journal.
STEP_TIMES = "steps.ssj"
#: Bytes of a file that are read at once for its checksum.
_PIECE = 1 << 16
#: Most names in a directory that are looked at for runs and ranks.
MOST_NAMES = 100_000
#: End of a run's name: its time, and its number among runs of that second.
NAMED_TIME = re.compile(r"_(\d{8}-\d{6})(?:[-_](\d{1,5}))?$")


class RankDirectory:
    """One rank's directory of a run.

    Args:
        path: The directory ``…/rank<N>``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rank(self) -> int:
        """Number in the directory's name."""
        return int(self.path.name.removeprefix("rank"))

    @property
    def capture(self) -> Path:
        """Directory that collectors write to."""
        return self.path / "capture"

    @property
    def tables(self) -> Path:
        """Directory of the Parquet tables."""
        return self.path / "tables"

    @property
    def results(self) -> Path:
        """Directory of the deliverables."""
        return self.path / "results"

    @property
    def manifest_path(self) -> Path:
        """The manifest file."""
        return self.path / MANIFEST

    @property
    def summary_path(self) -> Path:
        """The file of the few numbers of the rank; it is there once its results were computed."""
        return self.path / "summary.json"

    def create(self) -> None:
        """Make the directory and its ``capture`` folder, both 0700.

        Raises:
            FileExistsError: The rank's directory is already there; two recordings never share one.
        """
        make_private(self.path.parent)
        self.path.mkdir(mode=0o700)
        self.capture.mkdir(mode=0o700)

    def read_manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            NotARunError: The manifest is missing.
            DamagedTraceError: It is not what stepscope writes.
            InputError: It cannot be read.
            FormatVersionError: A newer stepscope wrote it.
        """
        try:
            manifest = decode(self.manifest_path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            message = f"{self.path} holds no {MANIFEST}."
            raise NotARunError(message, "Name a directory that `stepscope run` or `stepscope import` made.") from None
        except OSError as error:
            message = f"{self.manifest_path} cannot be read: {error.strerror}."
            raise InputError(message, "Make it readable for this user.") from None
        except ValueError as error:
            message = f"{self.manifest_path} is damaged: {error}."
            raise DamagedTraceError(message, "Restore it, or import the files under capture/ again.") from None
        version = manifest["format_version"]
        if type(version) is not int or version > FORMAT_VERSION:
            message = f"{self.manifest_path} has format version {version}; this stepscope reads up to {FORMAT_VERSION}."
            raise FormatVersionError(message, "Upgrade stepscope: pip install -U stepscope.")
        return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest under a temporary name and rename it, so that a reader never sees half of one.

        On a full disk it takes the place of the former one, if it fits: else a run whose files are cut stays complete.
        """
        document = {"format_version": FORMAT_VERSION, **manifest}
        text = json.dumps(document, indent=2, ensure_ascii=True, default=str)
        try:
            write_atomically(self.manifest_path, text.encode("utf-8"))
        except OSError as error:
            short = json.dumps(document, ensure_ascii=True, default=str).encode("utf-8")
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwrite(self.manifest_path, short):
                raise


def _overwrite(path: Path, content: bytes) -> bool:
    """Write into a file that is there, and return whether it was large enough: on a full disk it cannot grow."""
    try:
        with path.open("r+b", buffering=0) as file:
            fits = file.seek(0, os.SEEK_END) >= len(content)
            if fits:
                file.seek(0)
                file.write(content)
                file.truncate()
            return fits
    except OSError:
        return False


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file (0600) in the same directory that takes the place of ``path`` at the end of the block."""
    with _beside(path) as (temporary, handle):
        os.close(handle)
        yield Path(temporary)


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write ``content`` to ``path`` (0600) through a temporary file in the same directory."""
    with _beside(path) as (_, handle), os.fdopen(handle, "wb") as file:
        file.write(content)


@contextmanager
def _beside(path: Path) -> Iterator[tuple[str, int]]:
    """Yield a new file and its handle; it replaces ``path``, unless the block fails."""
    temporary = f"{str(path)[: -len(path.name)]}.{path.name}.{os.urandom(6).hex()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield temporary, handle
        os.replace(temporary, path)  # noqa: PTH105 - thirty times a rank: no Path is made
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def exists(path: Path) -> bool:
    """Return whether something that can be looked at is at a path; a path may be too long, or a loop of links."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def size_and_sum(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes and its CRC32, by which a derived file is known to be as it was written."""
    size = checksum = 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - once a table at each opening: no Path.open
        while piece := file.read(_PIECE):
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    return size, checksum


def ranks(run: Path) -> list[RankDirectory]:
    """Return the rank directories of a run, in order of rank, or the one that ``run`` is; empty if it is not a run."""
    if exists(run / MANIFEST):
        return [RankDirectory(run)]
    found = [run / name for name in _directories(run) if name[:4] == "rank" and name[4:].isdigit()]
    return sorted((RankDirectory(path) for path in found if exists(path / MANIFEST)), key=lambda rank: rank.rank)


def runs(directory: Path) -> list[Path]:
    """Return the runs in a directory, oldest first.

    The time of a run is that in its name (``<worker>_<date>-<time>``), else that of its first manifest.
    """
    found = [(directory / name, ranks(directory / name)) for name in _directories(directory)]
    return [path for path, _ in sorted(((path, of) for path, of in found if of), key=lambda run: _begun(*run))]


def _begun(run: Path, of: list[RankDirectory]) -> tuple[float, int, str]:
    named = NAMED_TIME.search(run.name)
    if named:
        try:
            return time.mktime(time.strptime(named[1], "%Y%m%d-%H%M%S")), int(named[2] or 1), run.name
        except (ValueError, OverflowError):
            pass
    return of[0].manifest_path.stat().st_mtime, 0, run.name


def _directories(directory: Path) -> list[str]:
    """Return the names of directories in one, of its first :data:`MOST_NAMES` names; empty if it cannot be listed."""
    try:
        with os.scandir(directory) as entries:
            first = itertools.islice(entries, MOST_NAMES)
            return [entry.name for entry in first if entry.name[0] != "." and entry.is_dir()]
    except (OSError, ValueError):
        return []


def make_private(directory: Path) -> None:
    """Make a directory and its missing parents, all with mode 0700: ``Path.mkdir`` makes parents by the umask.

    Raises:
        OSError: One of them cannot be made, or is a file.
    """
    if not directory.parent.exists():
        make_private(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def check_writable(output: Path) -> None:
    """Make ``output`` (0700) and prove that a file can be written there, before training starts.

    Raises:
        OutputError: It cannot be made or written; the message says why.
    """
    try:
        make_private(output)
        with tempfile.TemporaryFile(dir=output) as probe:
            probe.write(b"stepscope")
            probe.flush()
    except OSError as error:
        message = f"Cannot write to the output directory {output}: {error.strerror or error}."
        raise OutputError(message, "Choose another with --output (or output=).") from None
