"""Samples of stacks in blocks that are whole, damaged, missing or hostile."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest

from stepscope.read import read_files
from stepscope.trace.blocks import FrameWriter, pack
from stepscope.trace.tables import Frames

HZ = 50.0


def numbers(*values: int) -> str:
    """Return numbers as the sampler writes them."""
    content = bytearray()
    for given in values:
        value = given
        while value > 127:
            content.append(value & 127 | 128)
            value >>= 7
        content.append(value)
    return base64.b64encode(zlib.compress(bytes(content), 1)).decode()


def later(us: int) -> int:
    """Return a time in µs since the row before, as it is written."""
    return us << 1 if us >= 0 else -us * 2 - 1


#: Of a first block: `outer` calls `inner`; two looks at the main thread, and one that lasts for five at another.
FIRST: dict[str, Any] = {
    "rows": numbers(
        *(later(1_000_000), 0, 100, 1, 1, 2, 0),
        *(later(20_000), 0, 100, 0, 1, 1, 15),
        *(later(-5_000), 0, 101, 5, 5, 0, 0),
    ),
    "stacks": [0, numbers(*(0, 1, 10), *(1, 2, 20))],
    "names": [0, ["a.py", "outer", "b.py", "inner"]],
    "threads": [[100, "MainThread"]],
    "processes": [],
    "libraries": ["/usr/lib/python3.11"],
    "figures": {"ticks": 10, "covered": 200_000_000, "late": 1, "lost": 0, "cut": 0},
    "hz": HZ,
    "every": 4,
}
#: Of a second one: a stack upon those of the first, in a worker.
SECOND: dict[str, Any] = {
    "rows": numbers(later(2_000_000), 1, 500, 0, 1, 3, 0),
    "stacks": [2, numbers(2, 3, 30)],
    "names": [2, ["c.py", "innermost"]],
    "processes": [[1, 500, "Process-1"]],
    "figures": {"ticks": 20, "covered": 500_000_000, "lost": 2, "cut": 3, "refused": 1},
    "hz": HZ,
    "every": 4,
}


def read(folder: Path, *blocks: dict[str, Any]) -> Frames:
    file = FrameWriter(folder / "steps.ssj")
    anchors = [(0, 1_700_000_000_000_000_000, 10)]
    for block in blocks:
        file.append(pack({"process": 100, "host": "h", "anchors": anchors, "samples": block}))
    file.append(pack({"closed": True}))
    file.close()
    return read_files([folder / "steps.ssj"])


def functions(frames: Frames) -> dict[int, list[str]]:
    return {
        number: [frame["function"] for frame in of_stack]
        for number, of_stack in frames["stacks"].sort("id").iter_rows()
    }


def test_rows_stacks_and_names_of_several_blocks_belong_together(tmp_path: Path) -> None:
    frames = read(tmp_path, FIRST, SECOND)
    rows = frames["samples"].rows(named=True)
    base = 1_700_000_000_000_000_000
    assert [row["ts"] - base for row in rows] == [1_000_000_000, 1_015_000_000, 1_020_000_000, 2_000_000_000]
    assert [row["state"] for row in rows] == ["native", "lock", "python", "python"]
    assert [row["name"] for row in rows] == ["MainThread", "thread 101", "MainThread", "Process-1"]
    assert [row["worker"] for row in rows] == [None, None, None, 1]
    assert [row["process"] for row in rows] == [100, 100, 100, 500]
    # A look stands for the mean time between two of its block; of a worker, at which every fourth looks, for four
    assert [row["dur"] for row in rows] == [20_000_000, 100_000_000, 20_000_000, 120_000_000]
    assert [row["cpu"] for row in rows] == [None, None, 15_000, None]
    stacks = functions(frames)
    named = [None if row["stack"] is None else stacks[row["stack"]] for row in rows]
    assert named == [["inner", "outer"], None, ["outer"], ["innermost", "inner", "outer"]]
    losses = dict(frames["losses"].select("what", "count").iter_rows())
    assert losses == {"samples_lost": 2, "stacks_cut": 3, "workers_not_sampled": 1}


def test_a_block_that_is_gone_costs_the_stacks_that_rest_upon_it_and_nothing_else(tmp_path: Path) -> None:
    frames = read(tmp_path, {**FIRST, "rows": ""}, {**SECOND, "stacks": [3, numbers(3, 3, 30)]})
    (row,) = frames["samples"].rows(named=True)
    assert row["stack"] is None  # its outer stack, number 3, was in a block that is not there
    assert (row["state"], row["name"]) == ("python", "Process-1")


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": numbers(0, 0, 100, 10, 1, 0, 0)},  # a state that does not exist
        {"rows": numbers(0, 0, 100)},
        {"rows": numbers(later(1 << 60), 0, 100, 0, 1, 0, 0)},
        {"rows": "no base64"},
        {"rows": base64.b64encode(b"not compressed").decode()},
        {"rows": base64.b64encode(zlib.compress(b"\xff" * 30)).decode()},
        {"rows": base64.b64encode(zlib.compress(bytes(80 << 20))).decode()},  # a bomb
        {"stacks": [0, numbers(2, 1, 10)]},  # a stack inside a later one
        {"stacks": [0, numbers(1, 1, 10)]},  # a stack inside itself
        {"stacks": [1 << 40, ""]},
        {"names": [0, ["a.py"]]},
        {"every": 0},
        {"figures": {"ticks": -1}},
        {"processes": [[1, "a", "b"]]},
        {"hz": "fast"},
    ],
)
def test_a_block_that_the_sampler_does_not_write_is_left_out_and_counted(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    frames = read(tmp_path, {**FIRST, **damage}, SECOND)
    assert dict(frames["losses"].select("what", "count").iter_rows())["journal_unreadable"] == 1
    assert frames["samples"].height == 1


def test_names_and_stacks_that_lead_nowhere_are_unknown(tmp_path: Path) -> None:
    frames = read(tmp_path, {**FIRST, "names": [0, ["a.py", "outer"]], "rows": FIRST["rows"]})
    assert functions(frames)[max(functions(frames))] in (["?", "outer"], ["outer"])
    far = numbers(later(1_000_000), 0, 100, 0, 1, 1 << 19, 0)
    frames = read(tmp_path / "far", {**FIRST, "rows": far}) if (tmp_path / "far").mkdir() is None else frames
    assert frames["samples"]["stack"].to_list() == [None]


def test_a_file_without_samples_has_none(tmp_path: Path) -> None:
    frames = read(tmp_path)
    assert frames["samples"].is_empty()
    assert frames["metadata"].is_empty()
