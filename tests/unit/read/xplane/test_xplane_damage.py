"""Damaged XPlane files: cut at every length, and with random bytes; tables with losses, or our error in one line."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

from stepscope.errors import InputError
from stepscope.read.assemble.assemble import assemble
from stepscope.read.xplane import xplane_reader
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import conform
from tests.sizes import Size

SAMPLE = Path(__file__).resolve().parents[3] / "data" / "xplane" / "steps.xplane.pb"
#: Bytes of the last field of the file.
HOST = len(b"\x22\x02vm")


@pytest.fixture(params=["C", "Python"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both twins of the decoder, one after the other."""
    monkeypatch.setenv("STEPSCOPE_NATIVE", "1" if request.param == "C" else "0")
    return str(request.param)


def attempt(path: Path, content: bytes, *, whole: bool) -> tuple[int, int, set[str]] | None:
    """Read a file; return None where an error of ours says what is wrong, else spans, losses and names.

    Args:
        path: Where to put the file.
        content: What is in it.
        whole: Whether to assemble the tables too.
    """
    path.write_bytes(content)
    ledger = LossLedger(path.name)
    try:
        part = xplane_reader.read(path, ledger)
    except InputError as error:
        assert "\n" not in str(error)
        assert path.name in str(error)
        return None
    spans = part["spans"]
    assert (spans["dur"] >= 0).all()
    assert (spans["ts"] >= 0).all()
    if whole:
        frames = assemble([part], [ledger])
        for name in TABLES:
            assert conform(name, frames[name]).equals(frames[name])
    lost = sum(loss.count for loss in ledger.rows() if loss.what != "event_noise")
    return spans.height, lost, set(spans["name"].cast(pl.String))


def test_cut_at_every_length(tmp_path: Path, decoder: str, size: Size) -> None:
    content, path = SAMPLE.read_bytes(), tmp_path / "cut.xplane.pb"
    complete = attempt(path, content, whole=True)
    assert complete is not None
    assert complete[1] == 0
    found = []
    # Without C, which takes no part in what lies around the events, some lengths are enough.
    for length in size.lengths(len(content), 1 if decoder == "C" else 23):
        read = attempt(path, content[:length], whole=length % 50 == 0)
        if read is not None:
            found.append(read[0])
            assert read[2] <= complete[2]
            # Nothing betrays that the last field, the name of the host, is missing.
            assert read[1] or length == len(content) - HOST, length
    assert max(found) == complete[0]
    assert found == sorted(found)
    assert len(set(found)) > 3


def test_two_thousand_mutations(tmp_path: Path, decoder: str, size: Size) -> None:
    content, path = SAMPLE.read_bytes(), tmp_path / "damaged.xplane.pb"
    chance = random.Random(5)
    readable = 0
    for attempts in range(size.many(2000 if decoder == "C" else 200)):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(damaged))
            if chance.random() < 0.5:
                damaged[place] = chance.randrange(256)
            else:
                damaged[place : place + chance.randint(0, 6)] = chance.randbytes(chance.randint(0, 6))
        readable += attempt(path, bytes(damaged), whole=attempts % 10 == 0) is not None
    assert readable > size.many(50)
