"""The native recorder sees the same operators as torch.profiler, which runs at the same time on the same program."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import weakref
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch._subclasses import FakeTensorMode

import stepscope
from tests.frameworks.torch.programs import forked, manifest, runs
from tests.frameworks.torch.recorder_file import Operator, Recording, inputs_of, read

#: Before 2.4, torch.profiler's file has whole µs, too coarse to tell what lies in what, and no strides.
RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))

#: Makes torch.profiler see all threads, in versions that can.
ALL_THREADS = (
    {"profile_all_threads": True}
    if "profile_all_threads: bool" in (torch._C._profiler._ExperimentalConfig.__init__.__doc__ or "")
    else {}
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def record(output: Path, program: Callable[[], object], **switches: Any) -> tuple[Recording, Path]:
    """Record a program natively, and return what the file says."""
    with stepscope.profile(collector="native", output=output, analyse="later", **switches) as profile:
        program()
    assert profile.recorded[0].wait(60)
    (run,) = runs(output)
    state = manifest(run)["collectors"]["torch"]
    assert state["recorder"] == "native", state
    return read(run / "rank0" / "capture" / "recorder.ssr"), run


def record_both(output: Path, program: Callable[[], object], **switches: Any) -> tuple[Recording, list[dict[str, Any]]]:
    """Record a program natively and by torch.profiler at once; return both."""
    theirs = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        experimental_config=torch._C._profiler._ExperimentalConfig(**ALL_THREADS),
        **switches,
    )

    def both() -> None:
        with theirs:
            program()

    recording, _ = record(output / "runs", both, **switches)
    theirs.export_chrome_trace(str(output / "theirs.json"))
    document = json.loads((output / "theirs.json").read_text())
    kinds = {"cpu_op", "user_annotation"}
    found = [event for event in document["traceEvents"] if event.get("ph") == "X" and event["cat"] in kinds]
    return recording, sorted(found, key=lambda event: event["ts"])


def by_thread(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        found[event["tid"]].append(event)
    return found


def tree(begins: list[tuple[float, float]]) -> list[int]:
    """Return the depth of each interval among those of its thread, which are in order of their begins."""
    ends: list[float] = []
    depths = []
    for begin, end in begins:
        while ends and ends[-1] <= begin:
            ends.pop()
        depths.append(len(ends))
        ends.append(end)
    return depths


def compare(recording: Recording, theirs: list[dict[str, Any]], *, shapes: bool = False) -> int:
    """Hold both against each other: threads, order, names, nesting, sequence and forward threads, shapes, durations."""
    expected = by_thread(theirs)
    ours = {thread.native: thread.operators for thread in recording.threads if thread.operators}
    assert set(ours) == set(expected) or (not ALL_THREADS and set(expected) <= set(ours))
    for thread, events in expected.items():
        operators = ours[thread]
        assert [o.name for o in operators] == [event["name"] for event in events]
        links = [autograd_links(operators, place) for place in range(len(operators))]
        assert links == [
            (event["args"].get("Sequence number", -1), event["args"].get("Fwd thread id", 0)) for event in events
        ]
        places = [(event["ts"], event["ts"] + event["dur"]) for event in events]
        if RELEASE >= (2, 4):
            assert tree([(o.begin, o.end or 0) for o in operators]) == tree(places)
        if shapes:
            for operator, event in zip(operators, events, strict=True):
                check_inputs(operator, event["args"])
        check_durations(recording, operators, events)
    return sum(map(len, ours.values()))


def autograd_links(operators: list[Operator], place: int) -> tuple[int, int]:
    """Return sequence number and forward thread; torch.profiler gives the engine's operators those of their child."""
    own = operators[place]
    if own.name.startswith("autograd::engine::evaluate_function: "):
        own = operators[place + 1]
    return (own.sequence, own.forward) if own.sequence >= 0 else (-1, 0)


def check_inputs(operator: Operator, arguments: dict[str, Any]) -> None:
    found = inputs_of(operator)
    for key in ("Input Dims", "Input type", *(["Input Strides"] if RELEASE >= (2, 4) else [])):
        assert found[key] == arguments.get(key, []), (operator.name, key)
    for ours, theirs in zip(found["Concrete Inputs"], arguments.get("Concrete Inputs", []), strict=True):
        assert ours == theirs or float(ours) == pytest.approx(float(theirs), rel=1e-5), operator.name


def check_durations(recording: Recording, operators: list[Operator], events: list[dict[str, Any]]) -> None:
    """Each recorder's own work lies in the other's operators: 1 µs at either end, more where the machine is busy."""
    differences = []
    for operator, event in zip(operators, events, strict=True):
        assert operator.end is not None
        ours = recording.nanoseconds(operator.end) - recording.nanoseconds(operator.begin)
        differences.append(abs(ours - event["dur"] * 1e3))
    differences.sort()
    assert differences[len(differences) // 2] < 5_000


def training(steps: int = 3) -> Callable[[], None]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train() -> None:
        for number in range(steps):
            with torch.profiler.record_function(f"step {number}"):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([1, 2]))
                loss.backward()
                optimizer.step()

    train()
    return train


def test_the_same_operators_of_a_training(tmp_path: Path) -> None:
    recording, theirs = record_both(tmp_path, training(), record_shapes=True)
    assert compare(recording, theirs, shapes=True) > 500
    assert recording.closed
    assert not recording.losses


def test_the_same_operators_of_eight_threads(tmp_path: Path) -> None:
    def work(number: int) -> None:
        weight = torch.ones(number + 1, 3, requires_grad=True)
        for _ in range(40):
            torch.cat([weight, weight]).mul(2).sum().backward()

    def program() -> None:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    work(1)
    recording, theirs = record_both(tmp_path, program, record_shapes=True)
    compare(recording, theirs, shapes=True)
    assert len(recording.threads) >= 8


def test_an_exception_in_the_middle_of_an_operator_closes_it(tmp_path: Path) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise KeyError("in backward")

    def program() -> None:
        value = torch.ones(2, requires_grad=True)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="size"):
                torch.ones(2, 3).add(torch.ones(4, 5))
            with pytest.raises(KeyError):
                Broken.apply(value).sum().backward()
            with pytest.raises(ValueError, match="range"), torch.profiler.record_function("left by an exception"):
                raise ValueError("range")

    recording, theirs = record_both(tmp_path, program)
    compare(recording, theirs)
    assert all(operator.end is not None for operator in recording.operators)


def test_operators_open_at_start_and_stop(tmp_path: Path) -> None:
    # Given a thread whose ranges are open when the recording starts and when it stops
    inside, started, stopped, done = (threading.Event() for _ in range(4))

    def work() -> None:
        with torch.profiler.record_function("before"):
            inside.set()
            started.wait(30)
            torch.ones(2).add(1)
            with torch.profiler.record_function("open at the end"):
                torch.ones(2).add(1)
                stopped.set()
                done.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(30)
    profile = stepscope.profile(collector="native", output=tmp_path, analyse="later")
    profile.start()
    started.set()
    stopped.wait(30)
    profile.stop()
    done.set()
    thread.join()
    profile.recorded[0].wait(30)
    recording = read(runs(tmp_path)[0] / "rank0" / "capture" / "recorder.ssr")
    ended = {operator.name: operator.end is not None for operator in recording.operators}
    assert "before" not in ended
    assert [name for name, has_ended in ended.items() if not has_ended] == ["open at the end"]
    assert ended["aten::add"]


def test_ranges_that_end_in_another_order_or_on_another_thread(tmp_path: Path) -> None:
    def program() -> None:
        first, second, third = (torch.profiler.record_function(name) for name in ("first", "second", "third"))
        first.__enter__()
        second.__enter__()
        torch.ones(1)
        first.__exit__(None, None, None)
        third.__enter__()
        torch.zeros(1)
        thread = threading.Thread(target=second.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        third.__exit__(None, None, None)

    recording, _ = record(tmp_path, program)
    times = {o.name: (o.begin, o.end or 0) for o in recording.operators}
    assert times["first"][0] < times["second"][0] < times["first"][1] < times["third"][0] < times["second"][1]
    assert times["second"][1] < times["third"][1]


def test_targets_that_a_loss_ignores_are_counted(tmp_path: Path) -> None:
    words, pixels, none = torch.randn(40, 7), torch.randn(2, 5, 4, 4), torch.zeros(0, dtype=torch.long)
    labels, mask = torch.arange(40) % 7, torch.arange(32).view(2, 4, 4) % 5

    def program() -> None:
        cross_entropy = torch.nn.functional.cross_entropy
        cross_entropy(words, labels.where(labels < 5, -100))
        cross_entropy(words, labels, ignore_index=3)
        cross_entropy(pixels, mask, ignore_index=4)
        # Without memory of their own, or without rows: nothing is counted, and nothing fails.
        cross_entropy(torch.zeros(0, 9), none)
        torch.vmap(cross_entropy)(words.view(4, 10, 7), labels.view(4, 10))
        cross_entropy(words.to("meta"), labels.to("meta"))
        with FakeTensorMode():
            cross_entropy(torch.randn(4, 11), torch.ones(4, dtype=torch.long))

    recording, run = record(tmp_path, program, record_shapes=True)
    counted = {classes: (rows, ignored) for classes, rows, ignored in recording.facts["targets"]}
    seven = int((labels >= 5).sum() + (labels == 3).sum())
    assert counted == {7: (80, seven), 5: (32, int((mask == 4).sum()))}
    facts = dict(stepscope.open(run).ranks[0].tables["metadata"].collect().iter_rows())
    assert json.loads(facts["torch.targets"]) == recording.facts["targets"]


def test_targets_of_one_recording_do_not_count_in_the_next(tmp_path: Path) -> None:
    target = torch.tensor([0, -100])
    first, _ = record(
        tmp_path / "first", lambda: torch.nn.functional.cross_entropy(torch.randn(2, 3), target), record_shapes=True
    )
    assert first.facts["targets"] == [[3, 2, 1]]
    second, _ = record(tmp_path / "second", lambda: torch.ones(1), record_shapes=True)
    assert second.facts["targets"] == []


# In a process of its own: torch.compile cannot work any more where operators have gone.
COME_AND_GO = """
import sys, torch, stepscope
from torch import library
with stepscope.profile(collector="native", output=sys.argv[1], analyse="later"):
    for name in sys.argv[2:]:
        fragment = library.Library("come_and_go", "FRAGMENT")
        fragment.define(f"{name}(Tensor x) -> Tensor")
        fragment.impl(name, torch.clone, "CPU")
        getattr(torch.ops.come_and_go, name)(torch.ones(2))
        delattr(torch.ops.come_and_go, name)
        del fragment
"""


def test_an_operator_that_lies_where_another_was_has_its_own_name(tmp_path: Path) -> None:
    names = [f"operator_{number}" for number in range(40)]
    done = forked("-c", COME_AND_GO, tmp_path, *names)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    recording = read(run / "rank0" / "capture" / "recorder.ssr")
    found = [operator.name for operator in recording.operators if operator.name.startswith("come_and_go::")]
    assert found == [f"come_and_go::{name}" for name in names]


def test_lists_of_the_same_tensors_are_told_apart_by_their_type(tmp_path: Path) -> None:
    # Given calls of (Tensor, Tensor[]) and of (Tensor, Tensor?[]), of whose list nothing is noted, as in torch.profiler
    whole, places = torch.arange(4), torch.tensor([3, 2, 1, 0])

    def program() -> None:
        for _ in range(2):
            torch._C._nn.unflatten_dense_tensors(whole, [places])
            whole[places]

    recording, _ = record(tmp_path, program, record_shapes=True)
    noted = {operator.name: inputs_of(operator)["Input Dims"] for operator in recording.operators}
    assert noted["aten::unflatten_dense_tensors"] == [[4], [[4]]]
    assert noted["aten::index"] == [[4], []]


def test_memory_is_that_which_torch_reports(tmp_path: Path) -> None:
    kept = []

    def program() -> None:
        kept.append(torch.empty(1000, dtype=torch.float64))
        value = torch.ones(300, requires_grad=True)
        value.mul(2).sum().backward()

    recording, _ = record(tmp_path, program, profile_memory=True)
    (thread,) = (thread for thread in recording.threads if thread.memory)
    _, address, taken, allocated, _, device = thread.memory[0]
    assert (address, taken, device) == (kept[0].data_ptr(), 8000, 0)
    balance = 0
    for _, _, taken, total, _, _ in thread.memory:
        balance += taken
        assert total - allocated == balance - 8000
    assert any(taken < 0 for _, _, taken, *_ in thread.memory)


def test_a_profiler_of_the_programs_own_may_start_while_memory_is_recorded(tmp_path: Path) -> None:
    def program() -> None:
        torch.ones(8)
        with torch.profiler.profile(profile_memory=True) as theirs:
            torch.ones(8).add(1)
        names = {event.key for event in theirs.key_averages()}
        assert {"aten::ones", "aten::add"} <= names
        torch.ones(8).mul(2)

    recording, run = record(tmp_path, program, profile_memory=True)
    assert {"aten::ones", "aten::add", "aten::mul"} <= {operator.name for operator in recording.operators}
    assert "own torch profiler" in manifest(run)["collectors"]["torch"]["memory"]


def test_a_sample_has_its_fraction_of_the_operators_and_all_ranges(tmp_path: Path) -> None:
    steps = 300
    whole, _ = record(tmp_path / "whole", training(1))
    recording, _ = record(tmp_path / "sample", training(steps), sample=0.01)
    found = recording.operators
    ranges = sum(operator.scope == 7 for operator in found)
    expected = steps * sum(operator.scope != 7 for operator in whole.operators) / 100
    assert ranges == steps * sum(operator.scope == 7 for operator in whole.operators)
    assert abs(len(found) - ranges - expected) < 5 * expected**0.5
    assert recording.facts["sample"] == 0.01


def test_of_most_steps_a_sample_has_nothing(tmp_path: Path) -> None:
    # Given: a training that declares its steps, recorded whole and as a sample
    steps, train = 400, training(1)

    def program(profile: stepscope.profile) -> None:
        for _ in range(steps):
            train()
            profile.step()

    whole, _ = record(tmp_path / "whole", train)
    state = random.getstate()
    with stepscope.profile(collector="native", output=tmp_path / "runs", analyse="later", sample=0.04) as profile:
        program(profile)
    assert random.getstate() == state  # what is drawn is not drawn from the program's
    assert profile.recorded[0].wait(60)
    (run,) = runs(tmp_path / "runs")
    recording = read(run / "rank0" / "capture" / "recorder.ssr")
    # Then: of five steps each operator was drawn; from then on, of one step in 25 all were recorded
    begins = [ticks for ticks, _ in recording.rates]
    values = [value for _, value in recording.rates]
    assert (values[0], set(values[1:])) == (0.04, {0.0, 1.0})
    assert all(one != other for one, other in pairwise(values))
    found = [operator for operator in recording.operators if values[bisect(begins, operator.begin) - 1] == 1]
    drawn, ranges = (Counter(o.name for o in found if (o.scope == 7) == ranges) for ranges in (False, True))
    true, true_ranges = (
        Counter(o.name for o in whole.operators if (o.scope == 7) == ranges) for ranges in (False, True)
    )
    count = ranges["step 0"]
    assert 3 <= count <= 45
    assert drawn == Counter({name: count * calls for name, calls in true.items()})
    assert ranges == Counter({name: count * calls for name, calls in true_ranges.items()})
    # And the results say how many there were
    table = stepscope.open(run).ranks[0].results["op_statistic"]
    rows = {row["OP Type"]: row for row in table.to_dicts() if row["Device_id"] == "cpu"}
    for name in ("aten::empty", "aten::empty_strided", "aten::add_", "aten::copy_"):
        assert (rows[name]["Count"], rows[name]["Count Error"]) == (steps * true[name], 0), name  # steps are alike
        assert 0 < rows[name]["Total Time Error(us)"] < rows[name]["Total Time(us)"], name


def test_clocks_agree_with_each_other(tmp_path: Path) -> None:
    recording, _ = record(tmp_path, training())
    assert recording.facts["clock"] in ("tsc", "monotonic")
    assert len(recording.clocks) >= 2
    for ticks, monotonic, _, uncertainty, _ in recording.clocks:
        assert abs(recording.nanoseconds(ticks) - monotonic) <= uncertainty + 1_000


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[0] == 1:
            raise KeyError("one row")
        return self.layers(values).relu()


def above(operators: list[Operator], place: int) -> list[str]:
    """Return the names around an operator, outermost first."""
    names, depth = [], operators[place].depth
    for operator in reversed(operators[:place]):
        if operator.depth < depth:
            names.append(operator.name)
            depth = operator.depth
    return names[::-1]


@pytest.mark.parametrize("switch", ["with_stack", "with_modules"])
def test_operators_lie_in_the_calls_of_python_that_run_them(switch: str, tmp_path: Path) -> None:
    model = Net()

    def generate() -> Iterator[torch.Tensor]:
        for rows in (2, 3):
            yield model(torch.ones(rows, 4))

    def program() -> None:
        for output in generate():
            output.sum().backward()
        with pytest.raises(KeyError):
            model(torch.ones(1, 4))
        thread = threading.Thread(target=lambda: model(torch.ones(2, 4)))
        thread.start()
        thread.join()
        torch.ones(2).cosh()

    recording, _ = record(tmp_path, program, **{switch: True})
    threads = [thread.operators for thread in recording.threads if thread.operators]
    assert len(threads) == 2
    for operators in threads:
        stacks = [above(operators, place) for place, o in enumerate(operators) if o.name == "aten::addmm"]
        for number, stack in enumerate(stacks):
            modules = [name for name in stack if name.startswith("nn.Module: ")]
            assert modules == ["nn.Module: Net_0", "nn.Module: Sequential_0", f"nn.Module: Linear_{number % 2}"]
            functions = [name.rpartition(" ")[2] for name in stack if name.endswith(("generate", "Net.forward"))]
            in_main = len(operators) == max(map(len, threads))
            expected = [*(["generate"] if in_main else []), "Net.forward"] if switch == "with_stack" else []
            assert [name.rpartition(".")[2] for name in functions] == [n.rpartition(".")[2] for n in expected]
        assert len(stacks) == (4 if len(operators) == max(map(len, threads)) else 2)
        (last,) = [place for place, o in enumerate(operators) if o.name == "aten::cosh"] or [None]
        if last is not None:
            assert not [name for name in above(operators, last) if "Net" in name]
    # What is open at the end is what called the profile, and nothing of ours
    names = [operator.name for operators in threads for operator in operators]
    assert not [name for name in names if "stepscope/" in name and "tests" not in name]
    assert sys.getprofile() is None
    assert threading.getprofile() is None


CALLS = """
import sys
import threading
import weakref
import torch
import stepscope

def product(a):
    if a.shape[0] > 1:
        return torch.mm(
            a,
            a,
        )
    first = a * 2
    return first @ a  # matmul of one row

def halves(a):
    for part in a.split(1):
        yield part.cosh()  # in a generator
    yield a.sinh()

class Net(torch.nn.Module):
    def forward(self, a):
        return product(a)  # in a module

def main():
    square = torch.ones(2, 2)
    product(square)  # first
    product(square[:1, :1])  # second
    sorted([3, 1], key=lambda key: product(square).sum().item() + key)  # in a lambda
    for half in halves(square):  # each half
        pass
    Net()(square)  # of a module
    thread = threading.Thread(target=product, args=(square,))
    thread.start()
    thread.join()

with stepscope.profile(with_stack=True, collector="native", output=sys.argv[1]):
    main()
"""


def stacks_of(run: Path) -> Counter[tuple[str, ...]]:
    """Return how often each operator is called by which lines of the program, innermost first."""
    tables = stepscope.open(run).tables
    names = tables["spans"].select(pl.col("id").alias("span"), pl.col("name").cast(pl.String))
    frames = tables["stacks"].rename({"id": "stack"})
    rows = tables["operators"].join(names, on="span").join(frames, on="stack").select("name", "frames").collect()
    text = CALLS.splitlines()
    found: Counter[tuple[str, ...]] = Counter()
    for name, stack in rows.iter_rows():
        ours = [frame["line"] for frame in stack if (frame["file"] or "").endswith("calls.py")]
        found[name, *(text[line - 1].strip() for line in ours)] += 1
    return found


def test_a_stack_has_the_line_that_each_frame_executes(tmp_path: Path) -> None:
    program = tmp_path / "calls.py"
    program.write_text(CALLS)
    done = subprocess.run(
        [sys.executable, program, tmp_path / "out"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "out")
    found, mm = stacks_of(run), "return torch.mm("
    start = "main()"
    sort = "sorted([3, 1], key=lambda key: product(square).sum().item() + key)  # in a lambda"
    assert {stack: count for stack, count in found.items() if stack[0] == "aten::mm"} == {
        ("aten::mm", mm, "product(square)  # first", start): 1,
        ("aten::mm", "return first @ a  # matmul of one row", "product(square[:1, :1])  # second", start): 1,
        ("aten::mm", mm, sort, sort, start): 2,
        ("aten::mm", mm, "return product(a)  # in a module", "Net()(square)  # of a module", start): 1,
        ("aten::mm", mm): 1,
    }
    assert found["aten::mul", "first = a * 2", "product(square[:1, :1])  # second", start] == 1
    each = "for half in halves(square):  # each half"
    assert found["aten::cosh", "yield part.cosh()  # in a generator", each, start] == 2
    assert found["aten::sinh", "yield a.sinh()", each, start] == 1


def test_frames_whose_end_is_unseen_are_released_with_the_window(tmp_path: Path) -> None:
    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def inner() -> None:
        sys.setprofile(None)  # the ends of this call and of its callers are not reported any more
        torch.ones(2).cosh()

    def program() -> None:
        local = Held()
        held.append(weakref.ref(local))
        inner()

    def both() -> None:
        program()
        torch.ones(2).sinh()

    recording, _ = record(tmp_path, both, with_stack=True)
    assert {"aten::cosh", "aten::sinh"} <= {operator.name for operator in recording.operators}
    assert held[0]() is None
