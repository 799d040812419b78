"""Evaluations, checkpoints and logging are told by their part of the run and by how often they come."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.test_python_rules import PACKAGES, TRAIN, sampled
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN


@pytest.mark.parametrize(
    ("name", "every", "part", "causes"),
    [
        ("evaluation", 4, 0.8, ["frequent-evaluation"]),
        ("evaluation", 4, 0.3, []),
        ("evaluation", 30, 9.0, []),
        ("checkpoint", 1, 0.2, ["frequent-checkpoint"]),
        ("logging", 1, 0.08, ["frequent-logging"]),
    ],
)
def test_what_comes_often_and_takes_long_is_told(name: str, every: int, part: float, causes: list[str]) -> None:
    training = Training()
    training.run_steps(120)
    for number in range(0, 120, every):
        training.rank.add("run_events", name=name, ts=ORIGIN + number * STEP, dur=round(part * STEP))
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(0.95 * part * STEP / every, rel=0.1) for finding in found)


def test_evaluation_mode_that_lasts_to_the_end_of_each_step_is_that_of_a_part_that_trains_in_it() -> None:
    training = Training()
    training.run_steps(120)
    for number in range(120):
        training.rank.add("run_events", name="evaluation", ts=ORIGIN + number * STEP + STEP // 5, dur=4 * STEP // 5)
    assert training.causes() == []


def test_a_checkpoint_that_waits_for_a_file_is_not_scaled_by_waits_for_a_core() -> None:
    # Given steps of which half is a wait for a core, but for those with a checkpoint
    training = Training()
    training.run_steps(120)
    for row in training.rank.rows["run_steps"]:
        row["delay"] = 0 if row["number"] % 4 == 0 else STEP // 2
    for number in range(0, 120, 4):
        training.rank.add("run_events", name="checkpoint", ts=ORIGIN + number * STEP, dur=round(0.6 * STEP))
    [finding] = training.findings()
    assert finding.cause == "frequent-checkpoint"
    assert finding.gain_ns == pytest.approx(0.95 * 0.5 * STEP / 4, rel=0.05)


def test_the_looks_at_checkpoints_tell_how_long_they_take_where_steps_wait_for_a_core() -> None:
    # Given a checkpoint in the first half of each step, and waits for a core in the second half alone
    save = (("/home/me/train.py", "save"), TRAIN)
    training = sampled([(save, "io"), ((TRAIN,), "core")])
    for row in training.rank.rows["run_steps"]:
        row["delay"] = STEP // 2
        training.rank.add("run_events", name="checkpoint", ts=row["ts"], dur=STEP // 2)
    [found] = [finding for finding in training.findings() if finding.cause == "frequent-checkpoint"]
    assert found.gain_ns == pytest.approx(0.95 * STEP / 2, rel=0.1)


@pytest.mark.parametrize(
    ("function", "program", "recorded", "causes"),
    [
        ("validate", "eval_step", 10, ["frequent-evaluation"]),
        ("Trainer.evaluate", "eval_step", 10, ["frequent-evaluation"]),
        ("validate", "eval_step", 1, []),
        ("act", "policy", 10, []),
        ("latest_values", "value_step", 10, []),
    ],
    ids=["function", "method", "once", "a policy", "a name that contains one"],
)
def test_an_evaluation_of_jax_is_told_by_names(function: str, program: str, recorded: int, causes: list[str]) -> None:
    # Given a training that spends half of each step in a function, which runs a compiled program in so many steps
    waits = [((("/home/me/train.py", function), TRAIN), "lock"), ((TRAIN,), "native")]
    training = sampled(waits, "jax")
    for step in range(min(recorded, training.steps)):
        training.rank.span(0, "runtime", step * STEP + 5_000_000, 50_000, f"PjitFunction({program})", step=step)
    found = [finding for finding in training.findings() if finding.cause == "frequent-evaluation"]
    assert [finding.cause for finding in found] == causes
    assert all("(train.py:7)" in finding.evidence[0].text for finding in found)


@pytest.mark.parametrize(("place", "part"), [("save", 0.5), ("train", 0.25)], ids=["its function", "the loop"])
def test_what_the_program_does_for_a_checkpoint_is_its_time(place: str, part: float) -> None:
    # Given looks of which a quarter is inside of saving and a quarter behind it, in its function or in that of the loop
    saves, writes = (("/home/me/train.py", "save"), TRAIN), (("/home/me/train.py", place), TRAIN)
    other = (((f"{PACKAGES}/torch/nn/modules/module.py", "Module._call_impl"), TRAIN), "native")
    training = sampled([(saves, "python"), (writes, "native"), other, other])
    for number in range(0, 40, 4):
        training.rank.add("run_events", name="checkpoint", ts=ORIGIN + number * STEP, dur=STEP)
    [finding] = [one for one in training.findings() if one.cause == "frequent-checkpoint"]
    assert finding.gain_ns == pytest.approx(0.95 * part * STEP, rel=0.05)


def test_a_checkpoint_in_several_pieces_is_one() -> None:
    # Given every thirtieth step of 120 with a checkpoint in twelve pieces: as seldom as one in one piece
    training = Training()
    training.run_steps(120)
    for number in range(0, 120, 30):
        for piece in range(12):
            at = ORIGIN + number * STEP + piece * STEP // 20
            training.rank.add("run_events", name="checkpoint", ts=at, dur=STEP // 3)
    assert training.causes() == []


@pytest.mark.parametrize(("every", "longer", "causes"), [(4, 0.8, ["frequent-evaluation"]), (4, 0.3, []), (1, 0.8, [])])
def test_runs_that_evaluate_take_what_their_steps_take_longer(every: int, longer: float, causes: list[str]) -> None:
    # Given steps of JAX that end with a run of a program that evaluates, of which only the begin is known
    training = sampled([((TRAIN,), "native")], "jax")
    training.rank.rows["run_steps"].clear()
    training.run_steps(120)
    for row in training.rank.rows["run_steps"]:
        evaluates = row["number"] % every == 0
        row["ts"], row["dur"] = ORIGIN + 2 * row["number"] * STEP, round((1 + longer * evaluates) * STEP)
        if evaluates:
            training.rank.add("run_events", name="evaluation run", ts=row["ts"] + STEP // 4, dur=row["dur"] - STEP // 4)
    training.rank.add("metadata", key="evaluations", value='[["/home/me/train.py", "score"]]')
    found = [finding for finding in training.findings() if finding.cause == "frequent-evaluation"]
    assert [finding.cause for finding in found] == causes
    assert all("score (train.py)" in finding.evidence[0].text for finding in found)
    assert all(finding.gain_ns == pytest.approx(0.95 * longer * STEP / every, rel=0.05) for finding in found)


WEIGHT = [1024, 512]
#: Calls of a step that computes the deviation of a weight and the share of its zeros: name, ns, shapes.
NUMBERS = [
    ("aten::std", 700_000, [WEIGHT]), ("aten::item", 1_000, [[]]),
    ("aten::eq", 300_000, [WEIGHT]), ("aten::to", 200_000, [WEIGHT]), ("aten::mean", 100_000, [WEIGHT]),
    ("aten::item", 1_000, [[]]),
]  # fmt: skip


def reading(calls: list[tuple[str, int, list[list[int]]]], phase: str = "other") -> Training:
    """A training with these calls between backward and optimizer."""
    training = Training()
    training.call("aten::linear", 3_000_000, [[64, 512], WEIGHT], "forward", sequence=1)
    training.call("autograd::engine::evaluate_function: AddmmBackward0", 3_000_000, phase="backward", sequence=1)
    for name, dur, shapes in calls:
        training.call(name, dur, shapes, phase)
    training.call("aten::add_", 100_000, [WEIGHT], "optimizer")
    return training


def test_statistics_that_are_read_in_each_step_are_told_with_what_made_them() -> None:
    [found] = reading(NUMBERS).findings()
    assert found.cause == "statistics-in-step"
    assert found.gain_ns == pytest.approx(0.95 * 1_302_000)


def test_a_number_of_two_masks_is_a_statistic_whose_operator_changes_no_tensor() -> None:
    masks = [(name, 200_000, [WEIGHT]) for name in ("aten::eq", "aten::eq", "aten::__and__", "aten::sum")]
    [found] = reading([*masks, ("aten::item", 1_000, [[]])]).findings()
    assert found.gain_ns == pytest.approx(0.95 * 801_000)


def test_normalised_inputs_and_a_check_of_labels_are_no_statistics() -> None:
    images = [64, 3, 224, 224]
    calls = [("aten::sub", 900_000, [images]), ("aten::div", 900_000, [images]),
             ("aten::max", 5_000, [[64]]), ("aten::item", 1_000, [[]])]  # fmt: skip
    assert reading(calls).causes() == []


def test_a_norm_that_clips_gradients_is_no_statistic() -> None:
    clips = [("aten::linalg_vector_norm", 1_300_000, [WEIGHT]), ("aten::item", 1_000, [[]]),
             ("aten::mul_", 100_000, [WEIGHT])]  # fmt: skip
    assert reading(clips).causes() == []
    assert reading(clips[:-1]).causes() == ["statistics-in-step"]


def test_reductions_that_nobody_reads_and_those_of_the_training_are_no_statistics() -> None:
    assert reading([call for call in NUMBERS if call[0] != "aten::item"]).causes() == []
    assert "statistics-in-step" not in reading(NUMBERS, "forward").causes()
