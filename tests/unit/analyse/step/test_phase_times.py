"""The phases of a step: disjoint, whole, and from one piece of work to the next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse.step import activity
from stepscope.analyse.step.phase_times import phase_times
from stepscope.trace.schema import PHASES
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import ORIGIN, Rank


def phases_of(tables: Tables) -> dict[str, list[int]]:
    spans = activity.located(tables)
    found = phase_times(tables, activity.windows(tables, spans), activity.work(tables, spans))
    return {name: times.tolist() for name, times in found.items() if times.any()}


def host(*spans: tuple[str, int, int]) -> Rank:
    """A step of 100 ns with operators on a thread: phase, start, duration."""
    rank = Rank()
    rank.step(0, 0, 100)
    thread = rank.thread()
    for phase, start, duration in spans:
        rank.span(thread, "operator", start, duration, phase=phase)
    return rank


def test_gaps_and_unknown_work_between_two_pieces_of_a_phase_belong_to_it() -> None:
    rank = host(("forward", 10, 5), ("other", 17, 2), ("forward", 20, 10), ("backward", 35, 5), ("backward", 50, 10),
                ("other", 70, 5), ("optimizer", 80, 10))  # fmt: skip
    assert phases_of(rank.tables()) == {"forward": [20], "backward": [25], "optimizer": [10], "other": [45]}


def test_another_phase_between_ends_a_phase() -> None:
    rank = host(("forward", 0, 10), ("optimizer", 20, 10), ("forward", 40, 10))
    assert phases_of(rank.tables()) == {"forward": [20], "optimizer": [10], "other": [70]}


def test_an_evaluation_between_two_pieces_of_the_optimizer_is_not_the_optimizers() -> None:
    # Given a step that begins with a pass without gradients, between the optimizer's step and its zero_grad
    rank = Rank()
    thread = rank.thread()
    rank.step(0, 0, 30)
    rank.step(1, 30, 70)
    for phase, start, duration in (("forward", 0, 10), ("optimizer", 20, 10), ("other", 35, 20), ("optimizer", 60, 5)):
        rank.span(thread, "operator", start, duration, phase=phase)
    rank.span(thread, "operator", 70, 10, phase="forward")
    rank.span(thread, "operator", 90, 5, phase="optimizer")
    rank.span(thread, "operator", 97, 3, phase="optimizer")
    found = phases_of(rank.tables())
    assert found == {"forward": [10, 10], "optimizer": [10, 15], "other": [10, 45]}


def test_no_phase_lasts_over_the_end_of_a_step() -> None:
    rank = Rank()
    thread = rank.thread()
    for number, begin in enumerate((0, 50)):
        rank.step(number, begin, 50)
        rank.span(thread, "operator", begin + 10, 10, phase="forward")
    assert phases_of(rank.tables()) == {"forward": [10, 10], "other": [40, 40]}


def test_what_runs_between_two_collectives_is_not_communication() -> None:
    # Given a decoding, of which no phase but the communication is known
    rank = host(("communication", 10, 2), ("other", 15, 60), ("communication", 80, 2))
    assert phases_of(rank.tables()) == {"communication": [4], "other": [96]}


def test_a_wait_for_data_is_data_where_nothing_else_works() -> None:
    rank = host(("forward", 40, 10), ("backward", 50, 50))
    rank.span(rank.thread(2), "data", 20, 25)
    assert phases_of(rank.tables()) == {"data": [20], "forward": [10], "backward": [50], "other": [20]}


def test_all_of_the_optimizers_step_is_its_phase() -> None:
    # Given a range around the operators, and one that the program named itself, which has no phase
    rank = host(("forward", 0, 10), ("backward", 10, 20), ("optimizer", 60, 10))
    rank.span(rank.thread(), "annotation", 40, 45, "Optimizer.step#SGD.step", phase="optimizer")
    rank.span(rank.thread(), "annotation", 30, 65, "update of the weights")
    # Then the optimizer's own code before its first operator, and after its last one, is optimizer
    assert phases_of(rank.tables()) == {"forward": [10], "backward": [20], "optimizer": [45], "other": [25]}


def test_the_optimizers_part_of_its_step_is_behind_the_closure() -> None:
    # Given a step of the optimizer that runs the model first, with gaps between its operators
    rank = host(("forward", 10, 10), ("forward", 30, 10), ("backward", 40, 20), ("optimizer", 70, 10))
    rank.span(rank.thread(), "annotation", 0, 95, "Optimizer.step#SGD.step", phase="optimizer")
    assert phases_of(rank.tables()) == {"forward": [30], "backward": [20], "optimizer": [35], "other": [15]}


def test_an_evaluation_contains_what_runs_in_it() -> None:
    rank = host(("forward", 0, 10), ("backward", 10, 10), ("forward", 50, 10))
    rank.add("run_events", name="evaluation", ts=ORIGIN + 40, dur=40)
    assert phases_of(rank.tables()) == {"forward": [10], "backward": [10], "evaluation": [40], "other": [40]}


def test_with_a_device_its_work_decides() -> None:
    rank = host(("forward", 0, 5), ("backward", 5, 5))
    stream = rank.stream()
    rank.span(stream, "kernel", 10, 30, phase="forward")
    rank.span(stream, "kernel", 40, 40, phase="backward")
    rank.span(stream, "collective", 70, 20, phase="communication")
    assert phases_of(rank.tables()) == {"forward": [30], "backward": [40], "communication": [10], "other": [20]}


def test_without_a_known_phase_there_is_none() -> None:
    assert phases_of(host(("other", 0, 50)).tables()) == {}


PIECES = st.lists(
    st.tuples(st.sampled_from(PHASES), st.integers(0, 120), st.integers(0, 60), st.booleans()), max_size=12
)


@given(PIECES)
def test_phases_add_up_to_the_step(pieces: list[tuple[str, int, int, bool]]) -> None:
    rank = Rank()
    rank.step(0, 0, 50)
    rank.step(1, 50, 70)
    thread, stream = rank.thread(), rank.stream()
    for phase, start, duration, on_device in pieces:
        rank.span(stream if on_device else thread, "kernel" if on_device else "operator", start, duration, phase=phase)
    found = phases_of(rank.tables())
    if found:
        assert [sum(times) for times in zip(*found.values(), strict=True)] == [50, 70]
        assert all(time >= 0 for times in found.values() for time in times)
