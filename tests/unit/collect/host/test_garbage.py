"""Every garbage collection is a span on the thread it held up."""

from __future__ import annotations

import gc
from pathlib import Path

from stepscope.collect.host.garbage import GarbageCollector
from tests.unit.collect.conftest import Recording


def test_collections_are_spans(recording: Recording) -> None:
    # Given: no collection but ours
    collector = GarbageCollector()
    gc.disable()
    try:
        with recording.of(collector):
            cycle: list[object] = []
            cycle.append(cycle)
            del cycle
            gc.collect(0)
            gc.collect()
    finally:
        gc.enable()
    first, second = recording.read().spans
    assert (first["name"], first["kind"]) == ("garbage collection, generation 0", "garbage")
    assert (second["name"], second["args"]["generation"]) == ("garbage collection, generation 2", 2)
    assert first["args"]["collected"] >= 1
    assert second["dur"] > 0
    assert collector.describe() == {"collections": 2, "paused_ns": first["dur"] + second["dur"]}


def test_the_callback_is_gone_afterwards(recording: Recording) -> None:
    before = list(gc.callbacks)
    with recording.of(GarbageCollector()):
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before


def test_a_collection_under_way_when_the_window_opens_is_left_out(recording: Recording) -> None:
    # Given: the first that the collector hears is the end of a collection
    collector = GarbageCollector()
    collector.prepare(recording.context)
    gc.disable()
    try:
        collector.start()
        gc.callbacks[-1]("stop", {"generation": 2, "collected": 0, "uncollectable": 0})
        collector.stop()
    finally:
        gc.enable()
    assert recording.read().spans == []
    assert collector.describe() == {"collections": 0, "paused_ns": 0}


def test_stop_without_start(tmp_path: Path) -> None:
    assert GarbageCollector().stop() == []
