"""Causes planted in real captures of GPUs are named first, with their gain; the captures as they were have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.advise.device_idle import idle_rows, places
from stepscope.advise.finding import Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from tests.unit.advise.rules.edited_capture import EditedCapture
from tests.unit.analyse.build import ORIGIN, Rank

#: Steps of the capture, and the factor within which a gain is right.
STEPS, FACTOR = 5, 1.5
#: A launch in so many is followed by what is planted.
EVERY = 5

Edit = Callable[[EditedCapture], None]


@pytest.fixture
def resnet(shared_data: Path) -> Path:
    """Five steps of a ResNet on one V100 that computes 97 % of the time."""
    return next((shared_data / "kineto" / "hta" / "ns_resolution_trace").glob("*.json.gz"))


def found(path: Path) -> list[Finding]:
    return list(stepscope.open(path).findings)


def read_each_step(capture: EditedCapture) -> None:
    """Let the host wait once a step, as a program does that reads its loss: the host's steps are then the device's."""

    def wait(at: float) -> float:
        end = capture.drained(at) + 10
        capture.call("cudaStreamSynchronize", at, end)
        return end

    capture.plant([float(one["ts"] + one["dur"]) - 5 for one in capture.named("ProfilerStep#")], wait)


def some_launches(capture: EditedCapture) -> list[float]:
    return [float(one["ts"]) for one in capture.launches][::EVERY]


def items(capture: EditedCapture) -> None:
    def item(at: float) -> float:
        call = capture.call("cudaMemcpyAsync", at + 4, at + 10)
        copied = capture.launched(call, at + 8, "Memcpy DtoH (Device -> Pageable)", 2.0, category="gpu_memcpy")
        end = max(copied, at + 10) + 8
        capture.call("cudaStreamSynchronize", at + 11, end - 2)
        capture.call("aten::item", at, end, "cpu_op")
        capture.call("aten::_local_scalar_dense", at + 1, end - 0.5, "cpu_op")
        return end + 1

    capture.plant(some_launches(capture), item)


def synchronised(capture: EditedCapture) -> None:
    def wait(at: float) -> float:
        end = capture.drained(at + 5) + 10
        capture.call("cudaDeviceSynchronize", at, end)
        return end + 1

    capture.plant(some_launches(capture), wait)


def freed(capture: EditedCapture) -> None:
    def churn(at: float) -> float:
        done = capture.drained(at + 5) + 60
        capture.call("cudaFree", at, done)
        capture.call("cudaMalloc", done + 2, done + 80)
        return done + 82

    capture.plant(some_launches(capture), churn)


def full(capture: EditedCapture) -> None:
    freed(capture)
    capture.reserve(int(0.96 * capture.document["deviceProperties"][0]["totalGlobalMem"]))


def beside_a_small_one(capture: EditedCapture) -> None:
    """The device has room; another one of the machine is smaller than what is taken of it."""
    freed(capture)
    [own, *_] = capture.document["deviceProperties"]
    capture.reserve(int(0.3 * own["totalGlobalMem"]))
    capture.document["deviceProperties"] = [own, {**own, "id": own["id"] + 1, "totalGlobalMem": 1 << 30}]


def slow_host(capture: EditedCapture) -> None:
    def prepare(at: float) -> float:
        capture.call("aten::empty", at, at + 148, "cpu_op")
        return at + 150

    capture.plant([float(one["ts"]) for one in capture.launches], prepare)


def batches(capture: EditedCapture, memory: str, gigabytes: float, *, waits: bool) -> None:
    """Copy 100 MB at the beginning of each step."""
    moved = 100_000_000

    def copy(at: float) -> float:
        dur = moved / gigabytes / 1000
        call = capture.call("cudaMemcpyAsync", at + 3, at + 20)
        args = {"bytes": moved, "memory bandwidth (GB/s)": gigabytes}
        name = f"Memcpy HtoD ({memory} -> Device)"
        end = capture.launched(call, at + 5, name, dur, category="gpu_memcpy", args=args)
        if not waits:
            return at + 25
        capture.last_until(call, end + 5)
        return end + 10

    capture.plant([float(one["ts"]) + 50 for one in capture.named("ProfilerStep#")], copy)


def pageable(capture: EditedCapture) -> None:
    batches(capture, "Pageable", 4.0, waits=True)


def pinned(capture: EditedCapture) -> None:
    batches(capture, "Pinned", 12.0, waits=False)


def exchange(capture: EditedCapture, sizes: list[int], micros: float, *, at: list[float], stream: int) -> None:
    def reduce(begin: float) -> float:
        for size in sizes:
            said = {"Collective name": "allreduce", "In msg nelems": size // 4, "Out msg nelems": size // 4,
                    "Group size": 8, "dtype": "Float", "Process Group Name": "0"}  # fmt: skip
            capture.call("record_param_comms", begin, begin + 12, "cpu_op", **said)
            call = capture.call("cudaLaunchKernelExC", begin + 4, begin + 9)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            capture.launched(call, begin + 5, name, micros, stream=stream, args=said)
            begin += 13
        return begin

    capture.plant(at, reduce)


def backward_ends(capture: EditedCapture) -> list[float]:
    return [float(one["ts"]) + 1 for one in capture.named("## optimizer ##")]


def late_exchange(capture: EditedCapture) -> None:
    exchange(capture, [25 << 20] * 4, 6000.0, at=backward_ends(capture), stream=7)


def early_exchange(capture: EditedCapture) -> None:
    halfway = [float(one["ts"] + 0.3 * one["dur"]) for one in capture.named("## backward ##")]
    exchange(capture, [25 << 20] * 4, 6000.0, at=halfway, stream=20)


def small_exchanges(capture: EditedCapture) -> None:
    exchange(capture, [64 << 10] * 161, 150.0, at=backward_ends(capture), stream=7)


def on_ampere(capture: EditedCapture, kernel: str, factor: float) -> None:
    """Make it a capture of an A100 whose products are such kernels, and take so many times as long."""
    capture.document["deviceProperties"][0].update(name="NVIDIA A100-SXM4-40GB", computeMajor=8)
    for one in capture.work:
        if any(part in one["name"] for part in ("sgemm", "scudnn", "_engine<float")):
            one.update(name=kernel, dur=one["dur"] * factor)


def plain_float(capture: EditedCapture) -> None:
    on_ampere(capture, "ampere_sgemm_128x64_nn", 1.0)


def tensor_float(capture: EditedCapture) -> None:
    on_ampere(capture, "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>", 0.4)


def double(capture: EditedCapture) -> None:
    for one in capture.work:
        one.update(name=one["name"].replace("float", "double").replace("sgemm", "dgemm"), dur=2 * one["dur"])


def late_work(capture: EditedCapture) -> list[dict[str, Any]]:
    """Return the work of the last two of the five steps."""
    return capture.work[len(capture.work) * 3 // 5 :]


def regressed(capture: EditedCapture) -> None:
    for one in late_work(capture):
        if "sgemm" in one["name"] or "dgrad" in one["name"]:
            one["dur"] *= 2


def throttled(capture: EditedCapture) -> None:
    for one in late_work(capture):
        one["dur"] *= 1.4


PLANTED: list[tuple[str, Edit, Edit | None]] = [
    ("synchronising-call", items, None),
    ("synchronising-call", synchronised, None),
    ("device-memory-churn", freed, None),
    ("near-memory-limit", full, None),
    ("device-memory-churn", beside_a_small_one, None),
    ("host-bound", slow_host, None),
    ("unpinned-copies", pageable, pinned),
    ("communication-not-overlapped", late_exchange, early_exchange),
    ("small-collectives", small_exchanges, None),
    ("tf32-off", plain_float, tensor_float),
    ("double-precision", double, None),
    ("slower-kernel", regressed, None),
    ("low-clocks", throttled, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "plant", "repair"), PLANTED, ids=[plant.__name__ for _, plant, _ in PLANTED])
def test_what_is_planted_is_named_first(
    resnet: Path, tmp_path: Path, cause: str, plant: Edit, repair: Edit | None
) -> None:
    planted, healthy = EditedCapture(resnet), EditedCapture(resnet)
    for capture in (planted, healthy):
        read_each_step(capture)
    plant(planted)
    if repair is not None:
        repair(healthy)
    gain = (planted.write(tmp_path / "planted.json.gz") - healthy.write(tmp_path / "healthy.json.gz")) / STEPS
    # Then the repaired capture lacks the cause, and the planted one names it first, with what it costs
    assert cause not in {finding.cause for finding in found(tmp_path / "healthy.json.gz")}
    first = found(tmp_path / "planted.json.gz")[0]
    assert first.cause == cause
    assert gain / FACTOR <= (first.gain_ns or 0) / 1000 <= gain * FACTOR


@pytest.fixture
def attention(shared_data: Path) -> Path:
    """One step of a video classifier on an H100, with attention in pieces and images prepared in Python."""
    return next((shared_data / "kineto" / "tracelens" / "h100").glob("facebook_timesformer*.json.gz"))


@pytest.mark.slow
def test_attention_in_pieces_is_told_with_what_a_fused_one_saves(attention: Path, tmp_path: Path) -> None:
    # Given a twin whose attention is fused: no pass over the scores between the products, which take 60 %
    fused, gain = EditedCapture(attention), 0.0
    for one in fused.work:
        before = one["dur"]
        if "SoftMaxForward" in one["name"] or "AUnaryFunctor" in one["name"]:
            one["dur"] = 1.0
        elif "nn_align1" in one["name"]:
            one["dur"] *= 0.6
        gain += before - one["dur"]
    for one in fused.host:
        one["name"] = one["name"].replace("aten::_softmax", "aten::_scaled_dot_product_flash_attention")
    fused.write(tmp_path / "fused.json.gz")
    # Then only the capture in pieces has the finding; its gain is the work that is saved, for which the host waits
    [told] = [finding for finding in found(attention) if finding.cause == "attention-not-fused"]
    assert gain / FACTOR <= (told.gain_ns or 0) / 1000 <= gain * FACTOR
    assert "attention-not-fused" not in {finding.cause for finding in found(tmp_path / "fused.json.gz")}


def test_python_between_two_launches_is_no_lack_of_work_per_launch(attention: Path) -> None:
    first = found(attention)[0]
    assert first.cause == "python-in-step"
    assert first.operator is not None
    assert first.operator.startswith("transformers/image_transforms.py(390): normalize")


def test_a_training_without_torchs_cache_of_memory_is_told(shared_data: Path) -> None:
    [finding] = found(shared_data / "kineto" / "tracelens" / "ddp_resnet18_no_pool" / "train_resnet18.json.gz")
    assert finding.cause == "device-memory-churn"
    assert "PYTORCH_NO_HIP_MEMORY_CACHING" in finding.remedy


def test_copies_within_a_device_are_no_matter_of_pinned_memory(shared_data: Path) -> None:
    [finding] = found(shared_data / "kineto" / "hta" / "trace_diff" / "test" / "test.json.gz")
    assert finding.cause == "exposed-copies"
    assert "Memcpy DtoD" in finding.title
    assert "pin" not in finding.remedy.lower()


def test_loading_libraries_once_is_no_part_of_a_step(shared_data: Path) -> None:
    """Given a first call of a network, without steps: it loads cuDNN for seconds, once."""
    assert found(next((shared_data / "kineto" / "hta" / "critical_path" / "alexnet").glob("*.json.gz"))) == []


def test_without_steps_idle_time_is_that_of_the_whole_recording(resnet: Path, tmp_path: Path) -> None:
    """Given a host that is slow, and no marks of steps."""
    capture = EditedCapture(resnet)
    slow_host(capture)
    capture.host = [one for one in capture.host if not one["name"].startswith("ProfilerStep#")]
    capture.write(tmp_path / "planted.json.gz")
    (idle,) = (finding for finding in found(tmp_path / "planted.json.gz") if finding.cause == "host-bound")
    assert all("altogether" in one.text for one in idle.evidence)


def test_idle_time_without_an_owner_says_so(shared_data: Path) -> None:
    """Given a capture whose device idles between operators."""
    path = shared_data / "kineto" / "tracelens" / "mi300_bert_small.json.gz"
    rows = idle_rows(stepscope.open(path).ranks[0].tables, after_waits=False)
    between = [place for place, _, _ in places([row for row in rows if not (row.call or row.operator or row.line)])]
    assert between == ["outside of operators and calls"]


@pytest.mark.parametrize(("slowed", "causes"), [(1.0, ["low-clocks"]), (0.0, [])])
def test_slowed_clocks_are_told_with_their_reason(slowed: float, causes: list[str]) -> None:
    # Given kernels all the time, at 900 MHz but for a moment at 1800
    rank = Rank()
    stream, lane = rank.stream(), rank.track("counter", "cuda:0")
    rank.step(0, 0, 1_000_000)
    rank.span(stream, "kernel", 0, 1_000_000, "gemm", step=0)
    for number in range(10):
        at = number * 100_000
        for name, value in (("SM clock", 1800.0 if number == 0 else 900.0), ("slowed by heat", slowed)):
            rank.add("counters", track=lane, ts=ORIGIN + at, name=name, value=value, unit="")
    findings = found_in(Observed(rank.tables()))
    assert [finding.cause for finding in findings] == causes
    assert all(finding.gain_ns == pytest.approx(450_000, rel=0.01) for finding in findings)
