"""Which optimizer step ends a training step."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collect.loops import call_path
from stepscope.collect.steps import StepFinder, Stepped, StepsSeen


def ends(sequence: Iterable[str], *, learn: int = 10**9) -> list[int]:
    """Return the places in ``sequence`` at which a training step ended; learning stops after ``learn`` steps."""
    finder = StepFinder()
    return [place for place, name in enumerate(sequence) if finder.stepped(name, learning=place < learn)]


def test_one_optimizer_ends_a_step_each_time() -> None:
    assert ends("AAAA") == [0, 1, 2, 3]


def test_two_optimizers_in_turn_end_a_step_together() -> None:
    assert ends("ABABAB")[1:] == [1, 3, 5]


def test_a_critic_that_steps_five_times_is_part_of_the_generators_step() -> None:
    # The first five look like five training steps; the generator's first step corrects the count.
    finder = StepFinder()
    for name in "DDDDDG" * 3:
        finder.stepped(name, learning=True)
    assert finder.number == 3
    assert "least often" in finder.rule


def test_the_rare_one_may_come_first() -> None:
    # The first cycle is not enough to tell which of the two is rare.
    assert [place for place in ends("DGG" * 4) if place > 3] == [6, 9]


def test_an_optimizer_that_hardly_ever_steps_is_no_part_of_the_cycle() -> None:
    finder = StepFinder()
    for _ in range(4):
        for name in "A" * 100 + "E":
            finder.stepped(name, learning=True)
    assert finder.number == 400


def test_an_optimizer_that_stepped_once_before_the_training_does_not_count() -> None:
    assert ends("A" + "B" * 5) == [0, 1, 2, 3, 4, 5]


def test_an_optimizer_that_does_not_exist_any_more_does_not_count() -> None:
    finder = StepFinder()
    for name in "AAAAB":
        finder.stepped(name, learning=True)
    finder.forget("A")
    assert [finder.stepped("B", learning=True) for _ in range(9)] == [True] * 9


def test_the_next_one_takes_over_at_once_where_the_one_that_counted_was_deleted() -> None:
    finder = StepFinder()
    for name in "AAAA":
        finder.stepped(name, learning=True)
    finder.forget("A")
    assert [finder.stepped("B", learning=False) for _ in range(3)] == [True] * 3


class Optimizer:
    """What a hook reports."""


def test_optimizers_that_are_made_anew_in_each_step_are_one() -> None:
    # Given a critic and a generator, of which the program makes new ones for each step
    seen, critic, generator = StepsSeen(), Optimizer(), Optimizer()
    ended = []
    for _ in range(6):
        critic, generator = Optimizer(), Optimizer()
        seen.add(Stepped(critic, "Adam", "hooks"), learning=True)
        ended.append(seen.add(Stepped(generator, "Adam", "hooks"), learning=True))
    assert seen.finder.number == len(ended)
    assert all(ended)
    assert seen.describe()["optimizers"] == ["Adam", "Adam"]
    assert seen.describe()["renewed"]


def test_steps_of_an_earlier_stage_stay_steps() -> None:
    # Given a stage with one optimizer, then one with another: it ends steps as soon as the first one is gone
    finder = StepFinder()
    for name in "A" * 30 + "B" * 60:
        finder.stepped(name, learning=True)
    assert finder.closer == "A"
    assert finder.number == 30
    # and in one with both, what was counted before stays as it is
    finder.stepped("A", learning=True)
    assert finder.closer == "A" or not finder.counts_with("A")


def test_what_has_a_higher_rank_takes_over_and_the_steps_are_counted_anew() -> None:
    # Given 128 steps of an environment for each update of a training
    finder, ended = StepFinder(), []
    for _ in range(3):
        ended += [finder.stepped("environment", learning=True) for _ in range(128)]
        ended.append(finder.stepped("update", learning=True, rank=1))
    assert ended[:128] == [True] * 128
    assert [place for place, end in enumerate(ended) if end and place >= 128] == [128, 257, 386]
    assert (finder.closer, finder.number, finder.counts_with("environment")) == ("update", 3, True)


def test_a_higher_rank_waits_for_the_end_of_a_recording() -> None:
    finder = StepFinder()
    assert [finder.stepped("environment", learning=True) for _ in range(3)] == [True] * 3
    assert not finder.stepped("update", learning=False, rank=1)
    assert finder.stepped("environment", learning=False)
    # when the next report comes, whose it is does not matter
    assert not finder.stepped("environment", learning=True)
    assert (finder.closer, finder.number, finder.counts_with("environment")) == ("update", 1, True)
    assert finder.stepped("update", learning=True, rank=1)


@pytest.mark.parametrize(
    ("sequence", "concludes", "number"),
    [
        ("A" * 30 + "B" * 60, True, 60),
        ("A" * 30 + "BC" * 10, True, 10),
        ("A" * 30 + "B" * 3, False, 30),
        ("BA" * 9 + "B" * 20, False, 9),
    ],
    ids=["a stage of its own", "of two optimizers", "too short to tell", "of one that stepped before"],
)
def test_the_last_stage_of_a_program_counts_at_its_end(sequence: str, number: int, *, concludes: bool) -> None:
    finder = StepFinder()
    for name in sequence:
        finder.stepped(name, learning=True)
    assert finder.conclude() == concludes
    assert finder.number == number


def test_the_rule_holds_while_recording() -> None:
    # Given three steps learnt with one optimizer, a second one that appears changes nothing
    assert ends("AAA" + "BA" * 4, learn=3) == [0, 1, 2, 4, 6, 8, 10]


def test_another_optimizer_takes_over_where_the_one_that_counted_is_gone() -> None:
    places = ends("AAA" + "B" * 200, learn=3)
    assert places[:3] == [0, 1, 2]
    assert places[-1] == 202
    assert len(places) > 100


#: The loop of a program, and how many iterations it has.
LOOPS = {
    "in turn": ("for _ in range(20): A(); B()", 20),
    "a loop of its own": ("for _ in range(20):\n for _ in range(5): A()\n B()", 20),
    "a loop of its own, with a handler": (
        "for _ in range(20):\n for _ in range(5):\n  try:\n   with C: A()\n  except ValueError: pass\n B()",
        20,
    ),
    "every fifth iteration": ("for number in range(20):\n A()\n if number % 5 == 4: B()", 20),
    "every fifth iteration, first": ("for number in range(20):\n if number % 5 == 0: B()\n A()", 20),
    "while": ("number = 0\nwhile number < 20:\n number += 1\n A()\n if number % 2: B()", 20),
    "in a function with a loop": ("def f():\n for _ in range(3): A()\nfor _ in range(20): f(); B()", 20),
    "in functions": ("def f(): A()\ndef g(): B()\nfor number in range(20):\n f()\n if number % 3 == 0: g()", 20),
    "a loop over optimizers": ("for _ in range(20):\n for one in (A, B): one()", 20),
    "three": ("for number in range(20):\n A(); C()\n if number % 2: B()", 20),
    "twice an iteration": ("for _ in range(20): A(); A(); B()", 20),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_is_an_iteration_of_the_loop_that_optimizers_share(name: str) -> None:
    text, iterations = LOOPS[name]
    finder = StepFinder()

    class Optimizer(nullcontext):  # type: ignore[type-arg]
        def __call__(self) -> None:
            finder.stepped(self, learning=True, path=call_path)

    exec(text, {"A": Optimizer(), "B": Optimizer(), "C": Optimizer()})
    assert finder.number == iterations
    assert len(finder.ends_ns()) == iterations


@given(st.permutations("ABCD"), st.integers(5, 20))
def test_any_cycle_in_which_all_step_once_has_one_end(cycle: list[str], repeats: int) -> None:
    places = ends(cycle * repeats)
    later = [place for place in places if place >= len(cycle)]
    assert [place % 4 for place in later] == [3] * (repeats - 1)


@given(st.lists(st.sampled_from("ABC"), min_size=3, max_size=8).filter(lambda cycle: len(set(cycle)) > 1))
def test_a_repeating_cycle_settles_to_a_period(cycle: list[str]) -> None:
    # After a few repetitions the steps end at the same places of every cycle, at least once in each.
    size = len(cycle)
    places = ends(cycle * 12)
    late = [[place % size for place in places if place // size == turn] for turn in range(4, 12)]
    assert late[0]
    assert all(turn == late[0] for turn in late)
