"""Waits for data: what is advised, in the words of the framework, never more than the machine has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.advise.finding import Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from tests.unit.analyse.build import ORIGIN, Rank

FACTS = {"torch": "torch", "mindspore": "mindspore", "paddle": "profiler", "jax": "profiler"}


def waiting(framework: str, wait: int = 90_000, **said: object) -> Rank:
    """A step of 100 µs that waits for its batch and then computes."""
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 100_000)
    span = rank.span(host, "data", 0, wait, "loader.__next__")
    rank.span(host, "operator", wait, 100_000 - wait, "aten::mm" if framework == "torch" else "MatMul", step=0)
    for key, value in said.items():
        rank.add("arguments", span=span, key=key, value=json.dumps(value))
    if framework:
        rank.add("metadata", key=FACTS[framework], value='"xplane"' if framework == "jax" else '"paddle.profiler"')
    return rank


def found(rank: Rank) -> list[Finding]:
    return found_in(Observed(rank.tables()))


@pytest.mark.parametrize(
    ("framework", "said", "advice"),
    [
        ("torch", {"workers": 0, "cores": 2}, "Load in workers: DataLoader(…, num_workers=1, persistent_workers=True)"),
        ("torch", {"workers": 0, "cores": 16}, "Load in workers: DataLoader(…, num_workers=9, "),
        ("torch", {"workers": 0, "cores": 1}, "Make loading cheaper: the process may use one core."),
        ("torch", {"workers": 1, "cores": 32}, "num_workers=9"),
        ("torch", {"workers": 8, "cores": 8}, "more workers than 8 have no core"),
        ("paddle", {"workers": 0, "cores": 4}, "num_workers=3"),
        ("mindspore", {"workers": None, "cores": 4}, "num_parallel_workers=3"),
        ("jax", {"workers": None, "cores": 4}, "in a thread or process while the step runs"),
        ("", {"workers": 0, "cores": 4}, "Load in 3 workers"),
    ],
)
def test_advice_is_in_the_frameworks_words_and_never_above_the_cores(
    framework: str, said: dict[str, Any], advice: str
) -> None:
    [finding] = found(waiting(framework, **said))
    assert finding.cause == "data-loader-slow"
    assert advice in finding.remedy
    assert finding.gain_ns == 90_000
    assert finding.title.startswith("90.0 µs of 100 µs the training waits for its next batch")


@pytest.mark.parametrize(("collated", "causes"), [(True, ["data-loader-slow"]), (False, [])])
def test_whole_batches_that_are_made_at_once_have_nothing_to_save(collated: bool, causes: list[str]) -> None:
    rank = waiting("torch", wait=20_000, workers=0, cores=1)
    rank.add("metadata", key="dataloader.0", value=json.dumps({"workers": 0, "auto_collation": collated}))
    assert [finding.cause for finding in found(rank)] == causes


def test_what_the_training_does_while_it_waits_for_workers_makes_no_batches() -> None:
    # Given 60 steps of 10 ms in which the training thread is seen in the loader, and no worker is seen
    rank = waiting("torch", wait=1_000, workers=2, cores=4)
    for number in range(60):
        at = {"number": number, "ts": ORIGIN + number * 10_000_000, "dur": 10_000_000}
        rank.add("run_steps", **at, recorded=False, delay=0, data_wait=4_000_000)
    files = ("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "/home/me/train.py")
    rank.add("stacks", id=0, frames=[{"file": file, "line": 7, "function": "__next__"} for file in files])
    said = {"process": 100, "thread": 100, "name": "MainThread", "state": "python", "stack": 0, "worker": None}
    rank.add("samples", ts=ORIGIN, dur=600_000_000, cpu=600_000_000, count=30, **said)
    # Then what it does there is not the making of batches
    [finding] = (one for one in found(rank) if one.cause == "data-loader-slow")
    assert finding.title.endswith("batches are made in 2 workers")
    assert not any("training process" in evidence.text for evidence in finding.evidence)


def test_a_short_wait_is_no_finding() -> None:
    assert found(waiting("torch", wait=4_000, workers=0, cores=4)) == []


@pytest.mark.parametrize(("workers", "causes"), [(0, []), (2, ["data-loader-slow"])])
def test_a_wait_of_less_than_a_tenth_is_told_of_workers_alone(workers: int, causes: list[str]) -> None:
    assert [finding.cause for finding in found(waiting("paddle", wait=9_000, workers=workers, cores=4))] == causes


def test_workers_that_start_again_for_every_epoch_are_told() -> None:
    # Given 60 steps of 10 ms with short waits, but for every sixth, which begins an epoch and copies pages
    rank = waiting("torch", wait=1_000, workers=2, cores=4)
    rank.add("metadata", key="dataloader.0", value=json.dumps({"workers": 2, "persistent_workers": False}))
    ts = ORIGIN
    for number in range(60):
        wait = 40_000_000 if number % 6 == 0 else 100_000
        dur = 10_000_000 + wait + (0 if number % 6 else 6_000_000)
        rank.add("run_steps", number=number, ts=ts, dur=dur, recorded=False, delay=0, data_wait=wait)
        ts += dur
    [finding] = found(rank)
    assert finding.cause == "restarted-workers"
    assert finding.gain_ns == pytest.approx((39.9e6 + 6e6) / 6, rel=0.02)
    assert "every 6 steps" in finding.title
    assert "persistent_workers=True" in finding.remedy


@pytest.mark.parametrize(("epochs", "cause"), [(10, "restarted-workers"), (1, "data-loader-slow")])
def test_the_processes_of_workers_tell_whether_they_start_again(epochs: int, cause: str) -> None:
    # Given 60 steps of 10 ms, of which every sixth waits for 4.5 ms of them, and workers of so many epochs
    rank = waiting("torch", wait=1_000, workers=2, cores=4)
    rank.add("metadata", key="dataloader.0", value=json.dumps({"workers": 2, "persistent_workers": False}))
    for number in range(60):
        wait = 4_500_000 if number % 6 == 0 else 10_000
        at = {"number": number, "ts": ORIGIN + number * 10_000_000, "dur": 10_000_000}
        rank.add("run_steps", **at, recorded=False, delay=0, data_wait=wait)
        made = {"sample_dur": 9_000_000, "sample_cpu": 9_000_000, "collate_dur": 1000, "collate_cpu": 1000}
        rank.add("batches", ts=at["ts"], dur=9_001_000, dataset="Data", process=200, samples=8, **made)
    rank.add("stacks", id=0, frames=[{"file": "/home/me/train.py", "line": 7, "function": "read"}])
    for look in range(20):
        at = {"ts": ORIGIN + look * 30_000_000, "dur": 30_000_000, "count": 1, "cpu": None}
        process = look % (2 * epochs)
        rank.add("samples", **at, process=200 + process, thread=1, name="worker", worker=process, state="io", stack=0)
    assert [finding.cause for finding in found(rank)] == [cause]


@pytest.mark.parametrize(("every", "cause"), [(6, "restarted-workers"), (7, "useless-workers")])
def test_long_waits_at_one_distance_tell_epochs_that_samples_do_not_see(every: int, cause: str) -> None:
    # Given 60 steps of which ten wait long, at one distance or anywhere, and workers that were seen in one epoch
    rank = waiting("torch", wait=1_000, workers=2, cores=4)
    rank.add("metadata", key="dataloader.0", value=json.dumps({"workers": 2, "persistent_workers": False}))
    places = set(range(0, 60, 6)) if every == 6 else {0, 1, 5, 14, 16, 27, 30, 41, 44, 58}
    for number in range(60):
        at = {"number": number, "ts": ORIGIN + number * 10_000_000, "dur": 10_000_000}
        rank.add("run_steps", **at, recorded=False, delay=0, data_wait=5_500_000 if number in places else 10_000)
        made = {"sample_dur": 50_000, "sample_cpu": 50_000, "collate_dur": 1000, "collate_cpu": 1000}
        rank.add("batches", ts=at["ts"], dur=51_000, dataset="Data", process=200, samples=8, **made)
    rank.add("stacks", id=0, frames=[{"file": "/home/me/train.py", "line": 7, "function": "read"}])
    for process in range(2):
        at = {"ts": ORIGIN + process * 30_000_000, "dur": 30_000_000, "count": 1, "cpu": None}
        rank.add("samples", **at, process=200 + process, thread=1, name="worker", worker=process, state="io", stack=0)
    assert [finding.cause for finding in found(rank)] == [cause]


@pytest.mark.parametrize(("making", "cause"), [(300_000, "useless-workers"), (12_000_000, "data-loader-slow")])
def test_workers_that_make_a_batch_faster_than_they_send_it_are_of_no_use(making: int, cause: str) -> None:
    # Given 60 steps of 10 ms that wait 4 ms for batches, each of which is made in so long, one in ten interrupted
    rank = waiting("torch", wait=1_000, workers=2, cores=4)
    for number in range(60):
        at = ORIGIN + number * 10_000_000
        rank.add("run_steps", number=number, ts=at, dur=10_000_000, recorded=False, delay=0, data_wait=4_000_000)
        took = making + (0 if number % 10 else 50_000_000)
        times = {"sample_dur": took, "sample_cpu": making, "collate_dur": 1000, "collate_cpu": 1000}
        rank.add("batches", ts=at, dur=took + 1000, dataset="Data", process=200, samples=8, **times)
    rank.add("stacks", id=0, frames=[{"file": "/home/me/train.py", "line": 7, "function": "read"}])
    rank.add(
        "samples", ts=ORIGIN, dur=600_000_000, count=60, cpu=None, process=200, thread=1, name="worker", worker=0,
        state="io", stack=0,
    )  # fmt: skip
    [finding] = found(rank)
    assert finding.cause == cause
    assert finding.gain_ns == pytest.approx(3.7e6 if making < 4_000_000 else 4e6, rel=0.05)


@pytest.mark.parametrize(
    ("elements", "longest", "collated", "advice"),
    [
        (500, 48, 3072, "Pad to the longest sample of the batch"),
        (500, 192, 3072, "Put samples of about one length into a batch"),
        (2500, 192, 3072, None),
        (2800, 180, 3072, None),
        (768, 48, 3072, None),
    ],
    ids=["beyond the longest", "long and short", "a little", "nearly none", "one size, counted into more columns"],
)
def test_padding_is_told_by_the_sizes_of_samples_and_batches(
    elements: int, longest: int, collated: int, advice: str | None
) -> None:
    rank = waiting("torch", wait=1000)
    rank.span(0, "operator", 2000, 40_000, "aten::linear", step=0, phase="forward")
    rank.span(0, "operator", 50_000, 40_000, "autograd::engine::evaluate_function", step=0, phase="backward")
    for number in range(4):
        row = {"samples": 16, "elements": elements, "longest": longest, "collated": collated}
        unused = dict.fromkeys(("sample_dur", "sample_cpu", "collate_dur", "collate_cpu"), 0)
        rank.add("batches", ts=ORIGIN + number, dur=1, dataset="Texts", process=1, **row, **unused)
    told = [finding for finding in found(rank) if finding.cause == "padding"]
    assert [finding.remedy.startswith(str(advice)) for finding in told] == ([True] if advice else [])


TORCH = "/venv/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("inside", "causes"),
    [
        (["collate", "collate"], ["slow-collate"]),
        (["collate", "__getitem__"], ["data-loader-slow"]),
        (["__getitem__", "__getitem__"], ["data-loader-slow"]),
        ([], []),
    ],
)
def test_collation_is_named_where_most_of_the_loading_stands_in_it(inside: list[str], causes: list[str]) -> None:
    # Given 40 steps of 10 ms, seen in what makes their batches in so many of five looks, and in the model in the others
    rank, step = waiting("torch", wait=1_000), 10_000_000
    loader = [(f"{TORCH}/utils/data/_utils/fetch.py", "_MapDatasetFetcher.fetch"),
              (f"{TORCH}/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__")]  # fmt: skip
    model = [(f"{TORCH}/nn/modules/linear.py", "Linear.forward")]
    stacks = [[("/home/me/data.py", name), *loader] for name in inside] + [model] * (5 - len(inside))
    for number, frames in enumerate(stacks):
        listed = [{"file": file, "line": 7, "function": name} for file, name in (*frames, ("/home/me/train.py", "run"))]
        rank.add("stacks", id=number, frames=listed)
    for number in range(40):
        at = {"ts": ORIGIN + number * step, "dur": step}
        waited = len(inside) * step // 5
        rank.add("run_steps", number=number, **at, recorded=False, delay=0, data_wait=waited)
        said = {"process": 100, "thread": 100, "name": "MainThread", "worker": None, "count": 1, "cpu": step}
        rank.add("samples", **at, **said, stack=number % 5, state="native")
    found_ones = found(rank)
    assert [finding.cause for finding in found_ones] == causes
    assert all(finding.gain_ns == pytest.approx(len(inside) * step / 5, rel=0.05) for finding in found_ones)


@pytest.mark.parametrize("asks", [("dataloader.py", "_BaseDataLoaderIter._next_index"), ("sampler.py", "__iter__")])
def test_a_sampler_of_the_program_is_named_and_no_workers_are_advised(asks: tuple[str, str]) -> None:
    # Given 40 steps of 10 ms, half of whose looks see a sampler that chooses the next indices, or torch's around it
    rank, step = waiting("torch", wait=1_000, workers=0, cores=8), 10_000_000
    frames = [
        ("/home/me/data.py", "Buckets.__iter__"),
        (f"{TORCH}/utils/data/{asks[0]}", asks[1]),
        (f"{TORCH}/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__"),
        ("/home/me/train.py", "run"),
    ]
    for number, seen in enumerate((frames, [(f"{TORCH}/nn/modules/linear.py", "Linear.forward"), frames[-1]])):
        rank.add("stacks", id=number, frames=[{"file": file, "line": 7, "function": name} for file, name in seen])
    for number in range(40):
        at = {"ts": ORIGIN + number * step, "dur": step}
        rank.add("run_steps", number=number, **at, recorded=False, delay=0, data_wait=step // 2)
        said = {"process": 100, "thread": 100, "name": "MainThread", "worker": None, "count": 1, "cpu": step}
        rank.add("samples", **at, **said, stack=number % 2, state="native")
    # Then it is the place, and what workers do is nothing
    [finding] = found(rank)
    assert finding.title.endswith("a sampler chooses its samples in the training process: Buckets.__iter__ (data.py:7)")
    assert finding.gain_low_ns == 0
    assert "num_workers" not in finding.remedy
    assert finding.gain_ns == pytest.approx(step / 2, rel=0.05)


def test_what_frees_the_order_of_an_iterator_that_is_made_in_each_step_is_loading() -> None:
    # Given 40 steps of 10 ms, of whose looks a half see torch's sampler in the loader, and a quarter where it is freed
    rank, step = waiting("torch", wait=1_000, workers=0, cores=8), 10_000_000
    sampler, run = (f"{TORCH}/utils/data/sampler.py", "RandomSampler.__iter__"), ("/home/me/train.py", "run")
    ordering = [sampler, (f"{TORCH}/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__"), run]
    seen = [ordering, ordering, [sampler, run], [(f"{TORCH}/nn/modules/linear.py", "Linear.forward"), run]]
    for number, frames in enumerate(seen):
        rank.add("stacks", id=number, frames=[{"file": file, "line": 7, "function": name} for file, name in frames])
    for number in range(40):
        at = {"ts": ORIGIN + number * step, "dur": step}
        rank.add("run_steps", number=number, **at, recorded=False, delay=0, data_wait=step // 2)
        said = {"process": 100, "thread": 100, "name": "MainThread", "worker": None, "count": 1, "cpu": step}
        rank.add("samples", **at, **said, stack=number % 4, state="native")
    [finding] = found(rank)
    assert "batches = iter(loader)" in finding.remedy
    assert finding.gain_ns == pytest.approx(0.75 * step, rel=0.05)


@pytest.mark.parametrize(("cpu", "workers"), [(10, 19), (300, 5), (570, 3)], ids=["waits", "half", "computes"])
def test_workers_are_advised_as_far_as_the_cpu_time_of_their_samples_has_cores(cpu: int, workers: int) -> None:
    # Given 60 steps of 10 ms on 4 cores that wait 9.5 ms for a worker, which computes a part of it
    rank = waiting("torch", wait=95_000, workers=1, cores=4)
    for number in range(60):
        at = {"number": number, "ts": ORIGIN + number * 10_000_000, "dur": 10_000_000}
        rank.add("run_steps", **at, recorded=False, delay=0, data_wait=9_500_000)
    frames = [{"file": "/home/me/train.py", "line": 7, "function": "Images.__getitem__"}]
    rank.add("stacks", id=0, frames=frames)
    said = {"process": 200, "thread": 1, "name": "worker", "worker": 0, "cpu": None, "count": 40, "stack": 0}
    for state, ms in (("python", cpu), ("sleep", 570 - cpu)):
        if ms:
            rank.add("samples", ts=ORIGIN, dur=ms * 1_000_000, state=state, **said)
    [finding] = (one for one in found(rank) if one.cause == "data-loader-slow")
    assert f"num_workers={workers}," in finding.remedy


@pytest.mark.parametrize(("generators", "named"), [(["batches"], "batches"), ([], "")])
def test_a_generator_of_a_program_of_jax_loads_its_data(generators: list[str], named: str) -> None:
    # Given steps of 10 ms, of which two of five looks see the function that a loop goes through
    rank, step, own = Rank(), 10_000_000, "/home/me/train.py"
    rank.add("metadata", key="profiler", value='"xplane"')
    listed = [{"function": name, "file": own, "line": 3} for name in generators]
    rank.add("metadata", key="jax.used", value=json.dumps({"jit": [], "generators": listed}))
    inside = [{"file": own, "line": 7, "function": "read"}, {"file": own, "line": 4, "function": "batches"}]
    outside = [{"file": f"{TORCH}/../jax/_src/core.py", "line": 7, "function": "Primitive.bind"}]
    for number in range(2):
        frames = [*(inside, outside)[number], {"file": own, "line": 20, "function": "<module>"}]
        rank.add("stacks", id=number, frames=frames)
    for number in range(40):
        at = {"ts": ORIGIN + number * step, "dur": step}
        rank.add("run_steps", number=number, **at, recorded=False, delay=0)
        said = {"process": 100, "thread": 100, "name": "MainThread", "worker": None, "count": 1, "cpu": step}
        rank.add("samples", **at, **said, stack=int(number % 5 > 1), state="python")
    (finding,) = found(rank)
    assert finding.cause == ("data-loader-slow" if named else "python-in-step")
    assert ("waits for its next batch; samples are made in the training process: read" in finding.title) is bool(named)
    assert finding.gain_ns == pytest.approx(0.4 * step, rel=0.05)
