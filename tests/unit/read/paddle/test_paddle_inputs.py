"""Which operators have the inputs that a range around their call says, and which nodes of a backward have them."""

from __future__ import annotations

import json

import polars as pl

from stepscope.read.paddle.paddle_inputs import with_inputs
from stepscope.read.paddle.paddle_tables import HOST
from stepscope.trace.paddle_terms import SAYS_INPUTS

Event = tuple[str, str, int, int]


def says(width: int, gradients: int = 2) -> str:
    shapes, types = [[8, width], [width, 4]], ["float32", "float32"]
    said = {"shapes": shapes, "dtypes": types, "concrete": ["", "", "False", "False"], "gradients": gradients}
    return SAYS_INPUTS + json.dumps(said)


def call(at: int, width: int, gradients: int = 2) -> list[Event]:
    """A product in its range, which takes 10, and an addition behind it in the same range."""
    return [
        (says(width, gradients), "PythonUserDefined", at, 20),
        ("matmul dygraph", "Operator", at + 1, 10),
        ("add dygraph", "Operator", at + 12, 5),
    ]


def node(at: int) -> Event:
    return "Global_MatmulGradNode", "Operator", at, 10


def found(*events: Event) -> pl.DataFrame:
    rows = [
        {**dict.fromkeys(HOST), "name": name, "type": kind, "ts": at, "dur": dur, "process": 1, "thread": 2}
        for name, kind, at, dur in events
    ]
    return with_inputs(pl.DataFrame(rows, schema=HOST))


def widths(frame: pl.DataFrame) -> list[tuple[str, int | None, int]]:
    """Return name, width of the product and number of values of each event, in the order of time."""
    rows = frame.sort("ts").select("name", "shapes", "concrete").iter_rows()
    return [
        (name, json.loads(shapes)[0][1] if shapes else None, len(json.loads(said or "[]")))
        for name, shapes, said in rows
    ]


def test_the_first_operator_of_a_range_has_its_inputs_and_the_range_is_left_out() -> None:
    assert widths(found(*call(0, 16))) == [("matmul dygraph", 16, 4), ("add dygraph", None, 0)]


def test_events_without_such_ranges_stay_as_they_are() -> None:
    frame = found(node(0))
    assert frame.columns == [*HOST, "concrete"]
    assert widths(frame) == [("Global_MatmulGradNode", None, 0)]


def test_a_backward_has_the_inputs_of_its_forwards_in_reverse() -> None:
    frame = found(*call(0, 16), *call(100, 32), node(200), node(300), *call(400, 64), node(500))
    nodes = frame.filter(pl.col("name").str.starts_with("Global_"))
    assert [width for _, width, _ in widths(nodes)] == [32, 16, 64]
    assert [json.loads(text)[-1] for text in nodes["concrete"]] == ["2", "2", "2"]


def test_a_forward_without_gradients_has_no_backward() -> None:
    frame = found(*call(0, 16), *call(100, 32, gradients=0), node(200))
    assert widths(frame)[-1] == ("Global_MatmulGradNode", 16, 5)


def test_another_number_of_nodes_than_of_forwards_is_unknown() -> None:
    for events in ([*call(0, 16), *call(100, 32), node(200)], [*call(0, 16), node(200), node(300)]):
        nodes = found(*events).filter(pl.col("name").str.starts_with("Global_"))
        assert nodes["shapes"].to_list() == [None] * len(nodes)


def test_a_name_that_says_nothing_sound_gives_no_inputs() -> None:
    for text in ("{", "[]", '{"shapes": 3}', '{"shapes": [], "dtypes": [], "concrete": [], "gradients": "x"}'):
        frame = found((SAYS_INPUTS + text, "PythonUserDefined", 0, 20), ("matmul dygraph", "Operator", 1, 10))
        assert widths(frame) == [("matmul dygraph", None, 0)]
