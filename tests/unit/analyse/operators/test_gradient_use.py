from __future__ import annotations

from stepscope.analyse.operators.gradient_use import gradient_use
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import ORIGIN, Rank

US = 1000


def passes(tables: Tables) -> dict[tuple[str, str], tuple[int, float]]:
    rows = gradient_use(tables).rows(named=True)
    return {(row["Pass"], row["Name"]): (row["Count"], row["Host Time(us)"]) for row in rows}


class Training(Rank):
    def __init__(self) -> None:
        super().__init__()
        self.step(0, 0, 1000 * US)
        self.main = self.thread()

    def operator(self, ts: int, dur: int, name: str, forward_thread: int = 0, **more: object) -> int:
        more.setdefault("step", 0)
        row = self.span(self.main, "operator", ts * US, dur * US, name, **more)
        self.add("operators", span=row, forward_thread=forward_thread)
        return row


def test_operators_are_told_by_whether_a_backward_belongs_to_them() -> None:
    rank = Training()
    rank.operator(0, 50, "aten::linear", phase="forward", sequence=4)
    rank.operator(5, 20, "aten::addmm", phase="forward", sequence=4)
    rank.operator(60, 40, "aten::linear", phase="other")  # a teacher, say
    rank.operator(100, 90, "AddmmBackward0", 1, phase="backward", sequence=4)
    rank.operator(200, 70, "Optimizer.step#SGD.step", phase="optimizer")
    rank.operator(300, 30, "aten::linear", phase="other")
    rank.add("run_events", name="evaluation", ts=ORIGIN + 290 * US, dur=100 * US)
    rank.operator(2000, 70, "aten::linear", phase="other", step=None)
    assert passes(rank.tables()) == {
        ("evaluation", "aten::linear"): (1, 30),
        ("forward", "aten::linear"): (1, 50),
        ("no backward", "aten::linear"): (1, 40),
        ("backward", "AddmmBackward0"): (1, 90),
    }


def test_a_node_that_is_evaluated_again_repeats_a_backward() -> None:
    rank = Training()
    rank.operator(0, 50, "aten::linear", phase="forward", sequence=4)
    for ts, thread in ((100, 1), (300, 1), (500, 2)):
        rank.operator(ts, 90, "autograd::engine::evaluate_function: A", thread, phase="backward", sequence=4)
        rank.operator(ts + 10, 50, "A", thread, phase="backward", sequence=4)
    found = passes(rank.tables())
    assert found["backward", "autograd::engine::evaluate_function: A"] == (2, 180)
    assert found["repeated backward", "autograd::engine::evaluate_function: A"] == (1, 90)
    assert len(found) == 3


def test_a_forward_inside_a_backward_is_recomputed() -> None:
    rank = Training()
    rank.operator(100, 90, "CheckpointFunctionBackward", 1, phase="backward", sequence=4)
    rank.operator(110, 40, "aten::linear", phase="backward", sequence=9)
    rank.operator(115, 30, "aten::addmm", phase="backward", sequence=9)
    rank.operator(155, 20, "aten::mm", phase="backward")
    assert passes(rank.tables()) == {
        ("backward", "CheckpointFunctionBackward"): (1, 90),
        ("recomputed forward", "aten::linear"): (1, 40),
    }


def test_without_a_backward_pass_nothing_is_said() -> None:
    rank = Training()
    rank.operator(0, 50, "aten::linear", phase="other")
    assert passes(rank.tables()) == {}


def test_device_time_is_that_of_what_the_operator_launched() -> None:
    rank = Training()
    rank.operator(100, 90, "AddmmBackward0", 1, phase="backward", sequence=4)
    inner = rank.operator(110, 40, "aten::mm", phase="backward")
    for ts in (200, 300):
        rank.add("kernels", span=rank.span(rank.stream(), "kernel", ts * US, 25 * US), device=0, operator=inner)
    assert gradient_use(rank.tables())["Device Time(us)"].to_list() == [50]
