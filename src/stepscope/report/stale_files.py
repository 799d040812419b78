"""Which output files are stale: those made of something else than now, and those changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from stepscope.report.protocol import Format, Source
from stepscope.report.whole_files import write_whole
from stepscope.trace.run_directory import WRITTEN, size_and_sum


class _Written(msgspec.Struct):
    """Files of one format: what they were made of; name, size in bytes and CRC32 of each."""

    made_of: str
    files: list[tuple[str, int, int]]


def write_stale(
    formats: Iterable[Format], source: Callable[[], Source], directory: Path, made_of: str | None
) -> list[Path]:
    """Write the files of formats, but for those that would be written the same; return the paths of all.

    Args:
        formats: The formats.
        source: Returns what to write; called only if a file is stale.
        directory: Where to write.
        made_of: Fingerprint of everything that the source depends on; None writes every file and records nothing.

    Raises:
        OutputError: The directory cannot be made or written.
    """
    record = _read(directory) if made_of is not None else {}
    paths: list[Path] = []
    stale = False
    for output in formats:
        state, before = _state(output, made_of), record.get(output.name)
        if before is not None and before.made_of == state and before.files == _described(directory, before):
            paths += [directory / name for name, _, _ in before.files]
            continue
        written = output.write(source(), directory)
        for name, _, _ in before.files if before is not None else []:
            if directory / name not in written:
                (directory / name).unlink(missing_ok=True)
        described = [(path.relative_to(directory).as_posix(), *size_and_sum(path)) for path in written]
        record[output.name] = _Written(state, described)
        paths += written
        stale = True
    if stale and made_of is not None:
        write_whole(directory / WRITTEN, msgspec.json.encode(record))
    return paths


def fresh(output: Format, directory: Path, made_of: str | None) -> bool:
    """Return whether the files of a format are there, as they were written, and would be written the same."""
    written = _read(directory).get(output.name) if made_of is not None else None
    same = written is not None and written.made_of == _state(output, made_of)
    return same and written is not None and written.files == _described(directory, written)


def _state(output: Format, made_of: str | None) -> str:
    return f"{made_of} {output!r}"  # the format's own options stand in its repr


def _read(directory: Path) -> dict[str, _Written]:
    with suppress(OSError, ValueError):
        return msgspec.json.decode((directory / WRITTEN).read_bytes(), type=dict[str, _Written])
    return {}


def _described(directory: Path, written: _Written) -> list[tuple[str, int, int]] | None:
    """Return the files as they are; None if one is missing."""
    with suppress(OSError):
        return [(name, *size_and_sum(directory / name)) for name, _, _ in written.files]
    return None
