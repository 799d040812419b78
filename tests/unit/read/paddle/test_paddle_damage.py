"""Damaged files of Paddle's profilers: cut at every length, and with random bytes; tables with losses, or our error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope.errors import InputError
from stepscope.read import read_capture
from stepscope.read.assemble.assemble import assemble
from stepscope.read.sniff import look
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import conform
from tests import paddle_schemas
from tests.sizes import Size
from tests.unit.read.paddle.test_paddle_tables import START, US, a_gpu_trace, a_json_trace, complete


def a_profile(directory: Path) -> bytes:
    profile = paddle_schemas.profile()(start_ns=0, end_ns=0)
    for name, device, kind in (("conv2d", 2, 0), ("conv2d/compute", 2, 0), ("conv2d/compute", 0, 1), ("relu", 2, 0)):
        event = profile.events.add(name=name, start_ns=START, end_ns=START + 9 * US, device_id=device, type=kind)
        event.sub_device_id = 0
        event.memcopy.bytes = 7 * kind
    for place in (0, 1, 2):
        profile.mem_events.add(start_ns=START, end_ns=START + US, bytes=64, place=place, alloc_in="conv2d")
    return bytes(profile.SerializeToString())


def a_binary_trace(directory: Path) -> bytes:
    return bytes(a_gpu_trace().SerializeToString())


def a_text_trace(directory: Path) -> bytes:
    memory = {"place": "Place(cpu)", "addr": "94541671960576", "increase_bytes": 4, "current_allocated": 8}
    mark = {
        "name": "[memory]",
        "pid": 7,
        "tid": "11(C++)",
        "ts": START // US,
        "ph": "i",
        "cat": "Allocate",
        "args": memory,
    }
    events = [
        complete("Net", 0, 90, "Forward"),
        complete("conv2d", 6, 50),
        complete("ProfileStep#3", 0, 99, "ProfileStep"),
    ]
    return a_json_trace(directory, [*events, mark], ExtraInfo={"11": "MainThread"}).read_bytes()


SAMPLES: dict[str, Callable[[Path], bytes]] = {
    "fluid": a_profile,
    "paddle": a_binary_trace,
    "paddle_json": a_text_trace,
}


@pytest.fixture(params=SAMPLES)
def content(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    return SAMPLES[request.param](tmp_path)


def attempt(path: Path, content: bytes) -> dict[str, pl.DataFrame] | None:
    """Read a file; return None where an error of ours says in one line what is wrong."""
    path.write_bytes(content)
    ledger = LossLedger(path.name)
    try:
        part = read_capture(look(path)[0], ledger)
    except InputError as error:
        assert "\n" not in str(error)
        return None
    assert (part["spans"]["dur"] >= 0).all()
    return {**part, "losses": pl.DataFrame({"what": [loss.what for loss in ledger.rows()]}, schema={"what": pl.String})}


def check(part: dict[str, pl.DataFrame]) -> None:
    """Assemble the tables of a part, and see that they hold."""
    frames = assemble([{name: frame for name, frame in part.items() if name != "losses"}], [LossLedger("x")])
    for name in TABLES:
        assert conform(name, frames[name]).equals(frames[name])


@pytest.mark.parametrize("number", ["1e99999999", "-1e99999999", "1e-99999999", "NaN"])
@pytest.mark.parametrize("field", ['"start_time": "', '"end_time": "', '"ts": ', '"dur": '])
def test_a_number_beyond_all_decimals_costs_its_event_alone(tmp_path: Path, field: str, number: str) -> None:
    before, _, after = a_text_trace(tmp_path).decode().partition(field)
    rest = after[min(after.index(" us"), after.index(",")) :]
    frames = attempt(tmp_path / "trace.json", f"{before}{field}{number}{rest}".encode())
    assert frames is not None
    assert {"conv2d", "ProfileStep#3"} <= set(frames["spans"]["name"].cast(pl.String))


def test_cut_at_every_length(content: bytes, tmp_path: Path, size: Size) -> None:
    path = tmp_path / "file"
    whole = attempt(path, content)
    assert whole is not None
    names = set(whole["spans"]["name"].cast(pl.String))
    found = []
    for length in size.lengths(len(content)):
        frames = attempt(path, content[:length])
        if frames is not None:
            if length % 10 == 0:
                check(frames)
            assert set(frames["spans"]["name"].cast(pl.String)) <= names
            found.append(frames["spans"].height)
            if frames["spans"].height < whole["spans"].height:
                assert frames["losses"].height, length
    # What is read grows with the file.
    assert found == sorted(found)
    assert len(set(found)) > 3


def test_a_thousand_mutations(content: bytes, tmp_path: Path, size: Size) -> None:
    chance = random.Random(4)
    path = tmp_path / "file"
    read = 0
    for attempts in range(size.many(1000)):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(damaged))
            if chance.random() < 0.5:
                damaged[place] = chance.randrange(256)
            else:
                damaged[place : place + chance.randint(0, 6)] = chance.randbytes(chance.randint(0, 6))
        frames = attempt(path, bytes(damaged))
        if frames is not None:
            read += 1
            if attempts % 10 == 0:
                check(frames)
    assert read > size.many(300)
