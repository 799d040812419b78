"""Damages captures and reads them; whatever is not tables, results or one of our one-line errors is a fault.

::

    python -m tests.fuzz [--count 100000] [--seed 1] [READER ...]      (make fuzz)

Faults are printed once for each place in the code, and the captures that show them are kept in ``build/fuzz``.
``tests/fuzz_guided.py`` chooses the damage by the branches that it reaches.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import polars as pl

from stepscope.analyse.results import RESULTS, compute
from stepscope.analyse.step.summarise import summarise
from stepscope.errors import InputError
from stepscope.read import read_files
from stepscope.trace.tables import Frames, lazy
from tests.conftest import files_in
from tests.samples import SAMPLES

#: Seconds of processor time that one capture may take, and seconds that it may take altogether: other processes may
#: have the cores.
PATIENCE, HANGS = 5, 120
_KEPT = Path(__file__).resolve().parents[1] / "build" / "fuzz"

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
NUMBERS = (
    b"0", b"-1", b"1", b"2147483647", b"-2147483648", b"4294967296", b"9223372036854775807", b"-9223372036854775808",
    b"9223372036854775808", b"18446744073709551616", b"170141183460469231731687303715884105728", b"1e308", b"-1e308",
    b"1e400", b"1e-400", b"1e99999999", b"0.1", b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b'"7"', b"[]",
    b"{}", b"",
)  # fmt: skip
TEXTS = (
    rb'"\ud800"', rb'"\udc00\ud800"', rb'"\u0000"', b'""', b'"\xff"', b'"' + b"x" * 5000 + b'"', rb'"\u202e<b>"',
    b'"=1+1"', b"7", b"null", b"{}", b'"NaN"', b'"\xf0\x9f\x98\x80"', b'"1e400"', b"[[[[]]]]",
)  # fmt: skip
#: What binary formats hold at the ends of their numbers.
EXTREMES = (b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", b"\x00" * 7 + b"\x80", b"\x80")


class Mutator:
    """Makes damaged copies of a capture.

    Args:
        sample: The capture, a file or a directory.
        place: Where the copies are made, one after the other; their suffix is that of the sample.
        seed: Of the random choice.
    """

    def __init__(self, sample: Path, place: Path, seed: int) -> None:
        self.sample = sample
        self.place = place.with_name(f"{place.name}{''.join(sample.suffixes[-2:])}")
        self.chance = random.Random(seed)

    def damaged(self) -> Path:
        """Make the next copy and return its path."""
        if self.sample.is_dir():
            shutil.rmtree(self.place, ignore_errors=True)
            shutil.copytree(self.sample, self.place)
            path = self.chance.choice(files_in(self.place))
        else:
            path = self.place
        content = (path if self.sample.is_dir() else self.sample).read_bytes()
        packed = content[:2] == b"\x1f\x8b" and self.chance.random() < 0.8
        content = gzip.decompress(content) if packed else content
        for _ in range(self.chance.choice((1, 1, 1, 2, 5))):
            content = self.chance.choice(_DAMAGES)(content, self.chance)
        path.write_bytes(gzip.compress(content, 1) if packed else content)
        return self.place


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _overwrite(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    with_ = chance.choice(
        (chance.randbytes(chance.randint(1, 8)), b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", b"\x80")
    )
    return content[:at] + with_ + content[at + len(with_) :]


def _flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return content
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _move(content: bytes, chance: random.Random) -> bytes:
    """Take a piece out, put it in once more, or twice."""
    start, to = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    end = min(to, start + chance.choice((1, 4, 8, 100, 4000)))
    return content[:start] + content[start:end] * chance.choice((0, 2, 3)) + content[end:]


def _replace(pattern: re.Pattern[bytes], by: tuple[bytes, ...]) -> Callable[[bytes, random.Random], bytes]:
    def replace(content: bytes, chance: random.Random) -> bytes:
        start = chance.randrange(len(content) + 1)
        found = pattern.search(content, start) or pattern.search(content)
        return content[: found.start()] + chance.choice(by) + content[found.end() :] if found else content

    return replace


#: Numbers and texts are what most files hold; what is wrong in them passes the parsers.
_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut, _overwrite, _flip, _move, *[_replace(_NUMBER, NUMBERS)] * 3, _replace(_TEXT, TEXTS),
)  # fmt: skip


def results_of(frames: Frames) -> None:
    """Compute everything that the tables answer."""
    tables = lazy(frames)
    for name in RESULTS:
        compute(name, tables)
    summarise(tables)


@contextmanager
def _in_time() -> Iterator[None]:
    limits = (
        (signal.SIGPROF, signal.ITIMER_PROF, f"more than {PATIENCE} s of processor time", PATIENCE),
        (signal.SIGALRM, signal.ITIMER_REAL, f"longer than {HANGS} s", HANGS),
    )

    def late(number: int, _frame: FrameType | None) -> None:
        raise TimeoutError({int(limit): message for limit, _, message, _ in limits}[number])

    before = [signal.signal(limit, late) for limit, *_ in limits]
    for _, timer, _, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (limit, timer, *_), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(limit, handler)


def fault_of(path: Path, *, results: bool) -> str | None:
    """Return where reading a capture, and computing its results, ended in an exception that is not ours."""
    try:
        with _in_time():
            frames = read_files([path])
            if results:
                results_of(frames)
    except InputError:
        return None
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - this is what we look for
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "stepscope" in frame.filename]
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
        return f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None


def fuzz(name: str, count: int, seed: int) -> int:
    """Try so many damaged captures of a format; return the number of different faults."""
    known: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        sample = SAMPLES[name](Path(directory))
        mutator = Mutator(sample, Path(directory) / "damaged", seed)
        for number in range(count):
            path = mutator.damaged()
            fault = fault_of(path, results=number % 10 == 0)
            if fault and fault.partition(": ")[0] not in known:
                known[fault.partition(": ")[0]] = fault
                print(f"{name} {number}: {fault}", flush=True)
                keep(path, f"{name}-{number}")
    print(f"{name}: {count} captures, {len(known)} faults", flush=True)
    return len(known)


def keep(path: Path, name: str) -> None:
    kept = _KEPT / f"{name}{path.suffix}"
    _KEPT.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, kept, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, kept)


def main() -> int:
    """Fuzz the readers that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", choices=[[], *SAMPLES], metavar="READER")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return min(sum(fuzz(name, arguments.count, arguments.seed) for name in arguments.readers or SAMPLES), 1)


if __name__ == "__main__":
    sys.exit(main())
