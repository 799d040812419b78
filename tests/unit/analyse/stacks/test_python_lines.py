"""Time by line and by frame, of samples whose every number is known."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from stepscope.analyse.results import RESULTS, Results
from stepscope.analyse.stacks.flame import flame
from stepscope.analyse.stacks.python_lines import python_lines
from stepscope.analyse.stacks.sampled_time import sampled_time
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import ORIGIN, Rank

MS = 1_000_000
TORCH = "/venv/lib/python3.11/site-packages/torch"
PYTHON = "/usr/lib/python3.11"

Frames = list[tuple[str, int, str]]

#: Innermost first, as the table has them.
MAIN: Frames = [("/home/me/train.py", 90, "<module>"), ("<frozen runpy>", 88, "_run_code")]
TOKENIZE: Frames = [("/home/me/text.py", 7, "tokenize"), ("/home/me/train.py", 12, "train"), *MAIN]
LINEAR: Frames = [
    (f"{TORCH}/nn/modules/linear.py", 134, "Linear.forward"),
    (f"{TORCH}/nn/modules/module.py", 1789, "Module._call_impl"),
    ("/home/me/train.py", 20, "train"),
    *MAIN,
]
BACKWARD: Frames = [
    (f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward"),
    (f"{TORCH}/_tensor.py", 600, "Tensor.backward"),
    ("/home/me/train.py", 21, "train"),
    *MAIN,
]
RECOMPUTED: Frames = [*LINEAR[:2], ("/home/me/model.py", 5, "forward"), *BACKWARD]
RECURSIVE: Frames = [("/home/me/text.py", 9, "deep")] * 3 + MAIN
WORKER: Frames = [
    ("/home/me/data.py", 3, "Images.__getitem__"),
    (f"{TORCH}/utils/data/_utils/fetch.py", 54, "fetch"),
    (f"{PYTHON}/multiprocessing/process.py", 314, "BaseProcess._bootstrap"),
    ("/home/me/train.py", 18, "train"),
    *MAIN,
]
QUEUE: Frames = [
    (f"{PYTHON}/threading.py", 327, "Condition.wait"),
    (f"{PYTHON}/threading.py", 1002, "Thread._bootstrap"),
]
OURS: Frames = [
    (f"{PYTHON}/json/encoder.py", 200, "iterencode"),
    ("/opt/stepscope/collect/session/step_times.py", 300, "StepTimes._run"),
    (f"{PYTHON}/threading.py", 1002, "Thread._bootstrap"),
]
FX: Frames = [("<eval_with_key>.12", 8, "forward"), ("/home/me/train.py", 20, "train"), *MAIN]
#: Below a directory that the recording names as a library's.
EDITABLE: Frames = [("/src/jax/core.py", 3, "bind"), ("/home/me/train.py", 30, "train"), *MAIN]


class Sampled:
    """Samples of a rank with the process id 100, each of which stands for 20 ms."""

    def __init__(self) -> None:
        self.rank = Rank()
        self._stacks: list[Frames] = []
        self.rank.add("metadata", key="library_roots", value=json.dumps(["/src/jax"]))

    def add(self, at_ms: float, frames: Frames | None, state: str = "python", thread: int = 100, **more: Any) -> None:
        if frames is not None and frames not in self._stacks:
            listed = [{"file": file, "line": line, "function": function} for file, line, function in frames]
            self.rank.add("stacks", id=len(self._stacks), frames=listed)
            self._stacks.append(frames)
        row = {"count": 1, "process": 100, "thread": thread, "name": "MainThread" if thread == 100 else "other"} | more
        row |= {"dur": 20 * MS * row["count"], "state": state, "worker": row.get("worker")}
        stack = None if frames is None else self._stacks.index(frames)
        self.rank.add("samples", ts=ORIGIN + int(at_ms * MS), stack=stack, **{"cpu": None} | row)

    def step(self, number: int, at_ms: int, dur_ms: int) -> None:
        row = {"number": number, "ts": ORIGIN + at_ms * MS, "dur": dur_ms * MS, "recorded": False}
        self.rank.add("run_steps", **row)

    def tables(self) -> Tables:
        return self.rank.tables()


@pytest.fixture
def sampled() -> Sampled:
    made = Sampled()
    for number in range(4):
        made.step(number, number * 100, 100)
    return made


def row(table: pl.DataFrame, **wanted: object) -> dict[str, Any]:
    conditions = [pl.col(name).eq_missing(pl.lit(value)) for name, value in wanted.items()]
    (found,) = table.filter(*conditions).rows(named=True)
    return dict(found)


def test_library_frames_count_for_the_line_that_calls_them(sampled: Sampled) -> None:
    sampled.add(10, TOKENIZE)
    sampled.add(30, LINEAR, "native")
    sampled.add(50, FX, "native")
    sampled.add(70, EDITABLE, "python")
    lines = python_lines(sampled.tables())
    assert row(lines, Function="tokenize")["Self(us)"] == 20_000
    assert row(lines, Function="tokenize")["Inside"] is None
    linear = row(lines, File="/home/me/train.py", Line=20, Phase="forward")
    assert (linear["Self(us)"], linear["Native(us)"], linear["Python(us)"]) == (20_000, 20_000, 0)
    assert linear["Inside"] == "linear.py:134 Linear.forward"
    assert row(lines, File="/home/me/train.py", Line=20, Phase=None)["Inside"] == "<eval_with_key>.12:8 forward"
    assert row(lines, File="/home/me/train.py", Line=30)["Self(us)"] == 20_000
    # and who called a line has its time in the total, but not itself
    assert row(lines, File="/home/me/train.py", Line=12)["Self(us)"] == 0
    assert row(lines, File="/home/me/train.py", Line=12)["Total(us)"] == 20_000
    # and all self times add up to all that was sampled
    assert lines["Self(us)"].sum() == 80_000
    assert lines["Samples"].sum() == 4


def test_times_per_step_are_those_within_steps(sampled: Sampled) -> None:
    sampled.add(10, TOKENIZE)
    sampled.add(390, TOKENIZE)  # 10 of its 20 ms lie in the last step
    sampled.add(900, TOKENIZE)
    # A wait over three steps and the time behind them
    sampled.add(150, QUEUE, "lock", thread=7, count=20)
    lines = python_lines(sampled.tables())
    found = row(lines, Function="tokenize")
    assert (found["Self(us)"], found["Self per Step(us)"]) == (60_000, 30_000 / 4)
    waits = row(lines, Function="Condition.wait")
    assert (waits["Thread"], waits["Lock(us)"], waits["Self per Step(us)"]) == ("other", 400_000, 250_000 / 4)


def test_without_steps_nothing_is_said_per_step() -> None:
    sampled = Sampled()
    sampled.add(10, TOKENIZE)
    assert python_lines(sampled.tables())["Self per Step(us)"].is_null().all()
    assert flame(sampled.tables())["Total per Step(us)"].is_null().all()


def test_phases(sampled: Sampled) -> None:
    sampled.add(10, LINEAR)
    sampled.add(30, BACKWARD)
    sampled.add(50, RECOMPUTED)  # a forward pass inside backward is backward
    sampled.add(210, LINEAR)
    sampled.rank.add("run_events", name="evaluation", ts=ORIGIN + 200 * MS, dur=50 * MS)
    lines = python_lines(sampled.tables())
    assert row(lines, Line=20, Phase="forward")["Samples"] == 1
    assert row(lines, Line=21, Phase="backward")["Samples"] == 1
    assert row(lines, Function="forward", Phase="backward")["Samples"] == 1
    assert row(lines, Line=20, Phase="evaluation")["Samples"] == 1


def test_a_recursive_line_counts_once_in_the_total(sampled: Sampled) -> None:
    sampled.add(10, RECURSIVE)
    assert row(python_lines(sampled.tables()), Function="deep")["Total(us)"] == 20_000


def test_workers_are_one_and_have_no_frames_of_their_parent(sampled: Sampled) -> None:
    sampled.add(10, WORKER, process=200, thread=200, name="Process-1", worker=1)
    sampled.add(10, WORKER, process=201, thread=201, name="Process-2", worker=2)
    sampled.add(30, QUEUE, "lock", thread=8)
    sampled.add(30, TOKENIZE)
    lines = python_lines(sampled.tables())
    workers = lines.filter(pl.col("Thread") == "workers")
    assert workers["Function"].to_list() == ["Images.__getitem__"]
    assert workers["Self(us)"].to_list() == [40_000]
    # and the main thread comes first, then the workers
    assert lines["Thread"].unique(maintain_order=True).to_list() == ["MainThread", "workers", "other"]


def test_stepscope_is_not_blamed_on_a_line_and_its_waits_are_not_shown(sampled: Sampled) -> None:
    psutil = (f"{PYTHON}/site-packages/psutil/_pslinux.py", 317, "virtual_memory")
    sampled.add(10, [psutil, OURS[1], *TOKENIZE])
    sampled.add(10, OURS, "python", thread=9, name="stepscope-steps")
    sampled.add(30, OURS, "lock", thread=9, name="stepscope-steps", count=50)
    sampled.add(30, TOKENIZE)
    lines = python_lines(sampled.tables())
    assert row(lines, Thread="MainThread", Function="tokenize")["Self(us)"] == 20_000
    assert lines.filter(pl.col("Thread") == "stepscope")["Self(us)"].sum() == 40_000
    assert set(lines["Thread"]) == {"MainThread", "stepscope"}


def test_what_a_hook_calls_that_has_no_frames_is_the_frameworks(sampled: Sampled) -> None:
    """Paddle's backward is compiled: the innermost frame is that of the hook which calls it."""
    hook = ("/opt/stepscope/collect/hooks/methods.py", 54, "MethodHooks.around.<locals>.ours")
    backward = ("/env/lib/python3.11/site-packages/paddle/base/dygraph/tensor_patch_methods.py", 370, "backward")
    outer = [backward, ("/home/me/train.py", 12, "train"), *MAIN]
    steps = ("/opt/stepscope/collect/paddle/paddle_steps.py", 85, "PaddleSteps._differentiate")
    marks = ("/opt/stepscope/collect/paddle/paddle_marks.py", 99, "RangeMarks._backward")
    sampled.add(10, [steps, hook, marks, hook, *outer], "native")
    sampled.add(30, [OURS[1], steps, hook, *outer], "native")  # here the hook itself does something
    rows = sampled_time(sampled.tables()).rows
    assert dict(rows.select("thread", "phase").iter_rows()) == {"MainThread": "backward", "stepscope": None}
    leaves = sampled_time(sampled.tables()).frames.filter(pl.col("place") == 0)
    assert leaves["function"].cast(pl.String).to_list() == ["backward", OURS[1][2]]


def test_cpu_time_before_a_wait_for_a_core_in_stepscope_is_that_of_the_threads_lines(sampled: Sampled) -> None:
    inside = [OURS[1], *TOKENIZE]
    sampled.add(10, TOKENIZE, cpu=3 * MS)
    sampled.add(30, LINEAR, cpu=1 * MS)
    sampled.add(50, inside, "core", cpu=8 * MS)
    sampled.add(70, inside, "python", cpu=1 * MS)
    sampled.add(90, inside, "core", thread=7, cpu=2 * MS)
    rows = sampled_time(sampled.tables()).rows.sort("cpu", descending=True)
    assert rows["cpu"].sum() == pytest.approx(15 * MS)
    spent = rows.filter(pl.col("cpu") > 0).select("thread", "state", "cpu").rows()
    assert spent == [
        ("MainThread", "python", pytest.approx(3 * 13 / 5 * MS)),
        ("MainThread", "python", pytest.approx(13 / 5 * MS)),
        ("stepscope", "python", pytest.approx(13 / 5 * MS)),
        ("stepscope", "core", pytest.approx(2 * MS)),  # the thread was seen nowhere else
    ]


def test_a_stack_that_is_not_known_has_a_row(sampled: Sampled) -> None:
    sampled.add(10, None, "native")
    found = row(python_lines(sampled.tables()), Thread="MainThread")
    assert (found["File"], found["Native(us)"], found["Total(us)"]) == (None, 20_000, 20_000)


def test_shares_have_the_interval_of_wilson(sampled: Sampled) -> None:
    for number in range(40):
        sampled.add(10 * number, TOKENIZE if number % 10 == 0 else LINEAR)
    found = row(python_lines(sampled.tables()), Function="tokenize")
    assert found["Share(%)"] == 10
    # R: binom::binom.confint(4, 40, methods = "wilson")
    assert (found["Share Low(%)"], found["Share High(%)"]) == pytest.approx((3.958, 23.052), abs=0.01)


def test_the_flame_graph_is_a_tree_whose_times_add_up(sampled: Sampled) -> None:
    sampled.add(10, TOKENIZE)
    sampled.add(30, LINEAR, "native")
    sampled.add(50, LINEAR, "core")
    sampled.add(70, MAIN)
    sampled.add(70, WORKER, process=200, thread=200, name="Process-1", worker=1)
    nodes = flame(sampled.tables())
    assert nodes["Node"].to_list() == list(range(nodes.height))
    roots = nodes.filter(pl.col("Parent").is_null())
    assert roots.select("Function", "Total(us)").rows() == [("MainThread", 80_000.0), ("workers", 20_000.0)]
    for parent in nodes.iter_rows(named=True):
        inner = nodes.filter(pl.col("Parent") == parent["Node"])
        assert parent["Total(us)"] == parent["Self(us)"] + inner["Total(us)"].sum()
        assert (inner["Depth"] == parent["Depth"] + 1).all()
        assert inner["Total(us)"].is_sorted(descending=True)
        assert (inner["Node"] > parent["Node"]).all()
    linear = row(nodes, Function="Linear.forward")
    assert (linear["Samples"], linear["Native(us)"], linear["Core Wait(us)"], linear["Own"]) == (
        2,
        20_000,
        20_000,
        False,
    )
    assert row(nodes, Function="tokenize")["Own"]
    assert nodes["Self(us)"].sum() == 100_000


def test_without_samples_the_results_do_not_exist() -> None:
    results = Results(Rank().tables())
    assert not {"python_lines", "flame"} & set(results)
    assert {"python_lines", "flame"} <= set(RESULTS)
