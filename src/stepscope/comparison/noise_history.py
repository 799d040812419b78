"""How well a machine repeats itself, program by program: what earlier comparisons measured.

``noise.json`` in ``$XDG_STATE_HOME/stepscope`` holds, for each machine and program, sums of squares of levels about
their means and the degrees of freedom. Only what was measured inside one side, or about the mean of pairs, is kept: it
says how far runs of one program lie apart, whatever the difference between the sides.
"""

from __future__ import annotations

import math
import os
import platform
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from stepscope.comparison.verdict import SHIPPED, Spread
from stepscope.trace.run_directory import make_private, write_atomically

#: Comparisons of one program that are remembered: a machine changes.
_MOST = 20


class _Measured(msgspec.Struct):
    """What one comparison measured: squares, degrees of freedom, and a checksum of what was compared."""

    squares: float
    freedom: int
    of: int = 0


def history_path() -> Path:
    """Return the file of the history."""
    named = Path(os.environ.get("XDG_STATE_HOME") or "")
    return (named if named.is_absolute() else Path.home() / ".local" / "state") / "stepscope" / "noise.json"


def machine_key(program: str, framework: str = "", *, turns: bool) -> str:
    """Return what identifies a program on this machine: host, processor, framework and version, program, design."""
    design = "turns" if turns else "runs"
    return "|".join((platform.node(), _processor(), framework, program, design))


def _processor() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def known_spread(key: str | None, *, turns: bool, of: str | None = None) -> Spread:
    """Return what is known of the spread: what was measured here, with the shipped value as two of its degrees.

    What an earlier comparison of the same measured, ``of``, is left out: the same runs are not evidence twice.
    """
    shipped = SHIPPED[turns]
    checksum = None if of is None else _checksum(of)
    measured = [each for each in _read().get(key, []) if each.of != checksum] if key is not None else []
    if not measured:
        return shipped
    squares = sum(each.squares for each in measured) + shipped.freedom * shipped.size**2
    freedom = sum(each.freedom for each in measured) + shipped.freedom
    return Spread(math.sqrt(squares / freedom), freedom, "history")


def remember(key: str, squares: float, freedom: int, of: str) -> None:
    """Add what a comparison measured, once for what was compared; a file that cannot be written stays as it is."""
    history, checksum = _read(), _checksum(of)
    measured = history.setdefault(key, [])
    if freedom <= 0 or any(each.of == checksum for each in measured):
        return
    history[key] = [*measured, _Measured(squares, freedom, checksum)][-_MOST:]
    path = history_path()
    with suppress(OSError):
        make_private(path.parent)
        write_atomically(path, msgspec.json.encode(history))


def _checksum(of: str) -> int:
    return zlib.crc32(of.encode("utf-8", "surrogateescape"))


def _read() -> dict[str, list[_Measured]]:
    try:
        return msgspec.json.decode(history_path().read_bytes(), type=dict[str, list[_Measured]])
    except (OSError, ValueError):
        return {}  # missing, or damaged: it is made again
