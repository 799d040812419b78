"""Spans, marks and counters: no trace of them while nothing records, every oddity counted while something does."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.collect import annotations
from stepscope.collect.annotations import Span
from stepscope.collect.journal.journal import Journal

from .reading import Read, read_journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.ssj")
    annotations.bind(opened)
    yield opened
    annotations.unbind()
    opened.close()


@pytest.fixture
def recorded(journal: Journal) -> Callable[[], Read]:
    """End the recording and return what is in the journal."""

    def end() -> Read:
        annotations.unbind()
        journal.close()
        return read_journal(journal.path)

    return end


def names(found: Read) -> list[str]:
    return [span["name"] for span in found.spans]


def test_a_span_has_its_time_thread_and_arguments(recorded: Callable[[], Read]) -> None:
    with stepscope.span("load", images=32, path="train", shape=(8, 3)):
        time.sleep(0.01)
    (span,) = recorded().spans
    assert (span["name"], span["kind"]) == ("load", "annotation")
    assert span["args"] == {"images": 32, "path": "train", "shape": [8, 3]}
    assert span["thread"] == threading.get_native_id()
    assert 10_000_000 <= span["dur"] < 1_000_000_000


def test_spans_nest(recorded: Callable[[], Read]) -> None:
    with stepscope.span("outer"), stepscope.span("inner"):
        pass
    outer, inner = recorded().spans
    assert (outer["name"], inner["name"]) == ("outer", "inner")
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_a_decorator_times_every_call(recorded: Callable[[], Read]) -> None:
    @stepscope.span("factorial", way="recursive")
    def factorial(n: int) -> int:
        """n!"""
        return n * factorial(n - 1) if n else 1

    assert factorial(4) == 24
    assert (factorial.__name__, factorial.__doc__) == ("factorial", "n!")
    found = recorded()
    assert names(found) == ["factorial"] * 5
    assert found.spans[0]["args"] == {"way": "recursive"}
    assert found.counted == {}


def test_what_was_made_before_the_recording_records(tmp_path: Path) -> None:
    # Given: a decorated function and a span object from a time when nothing recorded
    @stepscope.span("decorated")
    def function() -> None:
        pass

    kept = stepscope.span("kept", x=1)
    function()
    with kept:
        pass
    # When
    journal = Journal(tmp_path / "journal.ssj")
    annotations.bind(journal)
    function()
    with kept:
        pass
    annotations.unbind()
    function()
    journal.close()
    # Then
    assert names(read_journal(journal.path)) == ["decorated", "kept"]


def test_one_object_is_entered_again_and_by_many_threads(recorded: Callable[[], Read]) -> None:
    shared = stepscope.span("shared")
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        with shared, shared:
            barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = recorded()
    assert names(found) == ["shared"] * 8
    assert sorted({span["thread"] for span in found.spans}) == sorted(thread.native_id or 0 for thread in threads)
    assert found.counted == {}


def test_an_exception_passes_and_the_span_is_closed(recorded: Callable[[], Read]) -> None:
    error = ValueError("the user's")
    with pytest.raises(ValueError, match="the user's") as caught, stepscope.span("fails"):
        raise error
    assert caught.value is error
    found = recorded()
    assert (names(found), found.counted) == (["fails"], {})


def test_wrong_order_keeps_times_and_is_counted(recorded: Callable[[], Read]) -> None:
    first, second = stepscope.span("first"), stepscope.span("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    found = recorded()
    one, two = found.spans
    assert (one["name"], two["name"]) == ("first", "second")
    assert one["ts"] <= two["ts"] <= one["ts"] + one["dur"] <= two["ts"] + two["dur"]
    assert found.counted == {"span_wrong_order": 1}


def test_a_span_never_closed_ends_with_the_recording(recorded: Callable[[], Read]) -> None:
    stepscope.span("open", x=1).__enter__()
    time.sleep(0.01)
    found = recorded()
    (span,) = found.spans
    assert span["dur"] >= 10_000_000
    assert span["args"] == {"x": 1, "not_closed": True}
    assert found.counted == {"span_not_closed": 1}


def test_a_span_closed_elsewhere_lies_where_it_was_opened(recorded: Callable[[], Read]) -> None:
    span = stepscope.span("handed over")
    span.__enter__()
    thread = threading.Thread(target=span.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    found = recorded()
    (row,) = found.spans
    assert row["thread"] == threading.get_native_id()
    assert row["args"] == {"closed_by_thread": thread.native_id}
    assert found.counted == {"span_other_thread": 1}


@pytest.mark.parametrize("args", [{}, {"x": 1}], ids=["shared", "own"])
def test_a_span_from_before_the_recording_is_counted(tmp_path: Path, args: dict[str, int]) -> None:
    # Given: a span opened before, and one of the same name that another thread has open
    early = stepscope.span("epoch", **args)
    early.__enter__()
    journal = Journal(tmp_path / "journal.ssj")
    annotations.bind(journal)
    opened, end = threading.Event(), threading.Event()

    def work() -> None:
        with stepscope.span("epoch", **args):
            opened.set()
            end.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    opened.wait(10)
    # When
    early.__exit__(None, None, None)
    end.set()
    thread.join()
    annotations.unbind()
    journal.close()
    # Then: the other thread's span is untouched
    found = read_journal(journal.path)
    assert [(span["thread"], span["args"]) for span in found.spans] == [(thread.native_id, args)]
    assert found.counted == {"span_opened_before": 1}


def test_marks_have_no_duration(recorded: Callable[[], Read]) -> None:
    stepscope.mark("epoch", number=3)
    (span,) = recorded().spans
    assert (span["name"], span["kind"], span["dur"], span["args"]) == ("epoch", "annotation", 0, {"number": 3})


def test_counters_take_numbers_only(recorded: Callable[[], Read]) -> None:
    class Tensor:
        def __float__(self) -> float:
            pytest.fail("it was asked for its value")

    for value in (0.5, 2, True, np.float32(0.25), np.int64(7), Fraction(1, 8), math.nan):
        stepscope.counter("loss", value, "nats")
    for value in (Tensor(), "1", None, 10**400, 1j):
        stepscope.counter("loss", value)
    found = recorded()
    assert [row["value"] for row in found.counters[:6]] == [0.5, 2.0, 1.0, 0.25, 7.0, 0.125]
    assert math.isnan(found.counters[6]["value"])
    assert {(row["name"], row["unit"]) for row in found.counters} == {("loss", "nats")}
    assert found.counted == {"counter_not_a_number": 5}


def test_arguments_are_kept_as_they_were_and_never_asked(recorded: Callable[[], Read]) -> None:
    class Tensor:
        def __repr__(self) -> str:
            pytest.fail("it was asked for its text")

    sizes = [1, 2]
    loop: list[object] = []
    loop.append(loop)
    with stepscope.span("s", sizes=sizes, tensor=Tensor(), loop=loop, deep={1: {2: {3: {4: {5: 6}}}}}):
        pass
    sizes.append(3)
    args = recorded().spans[0]["args"]
    assert args["sizes"] == [1, 2]
    assert args["tensor"] == "<Tensor>"
    assert args["loop"] == [[[["<list>"]]]]
    assert args["deep"] == {"1": {"2": {"3": {"4": "<dict>"}}}}


def test_names_of_any_kind_do_not_harm(recorded: Callable[[], Read]) -> None:
    for name in (5, None, ("a", 1)):
        with stepscope.span(name):  # type: ignore[arg-type]
            pass
    assert names(recorded()) == ["5", "<NoneType>", "<tuple>"]


def test_nothing_is_kept_while_nothing_records() -> None:
    kept = 0
    for number in range(10_000):
        span = stepscope.span(f"step {number}")
        with span:
            stepscope.mark("m")
            stepscope.counter("c", 1)
        kept += stepscope.span(f"step {number}") is span
    assert kept <= annotations.CACHED_SPANS
    assert not annotations.recording()


def test_binding_again_ends_what_was_open(journal: Journal, tmp_path: Path) -> None:
    stepscope.span("open").__enter__()
    second = Journal(tmp_path / "second.ssj")
    annotations.bind(second)
    with stepscope.span("second"):
        pass
    annotations.unbind()
    second.close()
    journal.close()
    assert read_journal(journal.path).counted == {"span_not_closed": 1}
    assert names(read_journal(second.path)) == ["second"]


def test_the_recording_may_end_at_any_moment(tmp_path: Path) -> None:
    # Given: threads that open and close spans without pause; when: recordings come and go
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                with stepscope.span("a", x=1), stepscope.span("b"):
                    pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must not be
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    counted = []
    for number in range(6):
        journal = Journal(tmp_path / f"{number}.ssj")
        annotations.bind(journal)
        time.sleep(0.002)
        annotations.unbind()
        journal.close()
        counted.append(read_journal(journal.path).counted)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(set(losses) <= {"span_not_closed", "span_opened_before"} for losses in counted)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_records_nothing(recorded: Callable[[], Read]) -> None:
    with stepscope.span("parent"):
        child = os.fork()
        if child == 0:
            with stepscope.span("child"):
                stepscope.mark("child")
            os._exit(1 if annotations.recording() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = recorded()
    assert (names(found), found.counted) == (["parent"], {})


def test_off_methods_are_not_python_functions() -> None:
    # 0.05 µs each: an empty Python function would double what an unused span costs.
    assert not hasattr(Span.__enter__, "__code__")
    assert not hasattr(Span.__exit__, "__code__")


def test_the_import_brings_in_nothing_heavy() -> None:
    program = "import sys, stepscope; stepscope.span; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert not loaded & {"logging", "json", "polars", "torch", "numpy", "psutil", "stepscope.collect.journal.journal"}
