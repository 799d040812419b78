"""A real capture of a GPU against itself, in which one kernel became slower, or another one took its place."""

from __future__ import annotations

import bisect
import gzip
import json
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import stepscope
from stepscope.comparison.comparison import Comparison
from stepscope.comparison.part_changes import PartChange

from . import conftest

Events: TypeAlias = list[dict[str, Any]]
#: What a device does, whose begin moves when something before it takes longer.
ON_DEVICE = ("kernel", "memcpy", "memset")


def kernels_by_time(events: Events) -> list[str]:
    taken: Counter[str] = Counter()
    for event in events:
        if event.get("cat", "").lower() == "kernel":
            taken[event["name"]] += event["dur"]
    return [name for name, _ in taken.most_common()]


def slower(events: Events, name: str, factor: float) -> float:
    """Let a kernel take longer, and what comes behind it begin later; return what it takes more, µs."""
    on_device = sorted((e for e in events if e.get("cat", "").lower() in ON_DEVICE), key=lambda event: event["ts"])
    more = [event["dur"] * (factor - 1) * (event["name"] == name) for event in on_device]
    before = [0.0, *accumulate(more)]
    begins = [event["ts"] for event in on_device]
    for event, grown in zip(on_device, more, strict=True):
        event["ts"] += before[bisect.bisect_left(begins, event["ts"])]
        event["dur"] += grown
    return sum(more)


@pytest.fixture
def original(shared_data: Path) -> Path:
    return shared_data / "kineto" / conftest.FILES["v100_2021_no_workers"]


def compared(original: Path, tmp_path: Path, trace: dict[str, Any]) -> Comparison:
    path = tmp_path / "edited.pt.trace.json"
    path.write_text(json.dumps(trace))
    return stepscope.compare(original, path)


def loaded(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def named(found: Comparison) -> list[PartChange]:
    assert found.parts is not None
    return [part for part in found.parts.sure if part.place == "device"]


def test_a_kernel_that_became_slower_is_named_with_what_it_takes_longer(original: Path, tmp_path: Path) -> None:
    trace = loaded(original)
    name = kernels_by_time(trace["traceEvents"])[2]
    more = slower(trace["traceEvents"], name, 1.5)
    (part,) = named(compared(original, tmp_path, trace))
    assert (part.name_a, part.name_b) == (name, name)
    assert part.change_ns == pytest.approx(1000 * more / 6, rel=0.35)  # six steps, of which the quick ones count


def test_another_kernel_in_its_place_is_named_with_both_names(original: Path, tmp_path: Path) -> None:
    trace = loaded(original)
    name = kernels_by_time(trace["traceEvents"])[0]
    slower(trace["traceEvents"], name, 1.5)
    for event in trace["traceEvents"]:
        if event.get("name") == name:
            event["name"] = "void other_library::gradient_of_data(float const*, float*)"
    (part,) = named(compared(original, tmp_path, trace))
    assert (part.name_a, part.name_b) == (name, "void other_library::gradient_of_data(float const*, float*)")
