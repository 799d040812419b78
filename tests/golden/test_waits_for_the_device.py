"""Real captures whose host waits for the device are not called launch-bound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from stepscope.analyse.step.summarise import summarise
from stepscope.read import read_files
from stepscope.trace.tables import lazy

from . import oracle

#: Captures of TraceLens, and the calls in which most of the device's idle time passes.
CAPTURES = {
    "sglang_decode/sglang_Qwen3-8B_decode.json.gz": {"hipMemcpyWithStream"},
    "ddp_resnet18_no_pool/train_resnet18.json.gz": {"hipFree", "hipMemcpyWithStream", "hipDeviceSynchronize"},
}
#: What is told of them: a training without torch's cache of memory; a decoding that waits once, for work of before.
CAUSES = {
    "sglang_decode/sglang_Qwen3-8B_decode.json.gz": [],
    "ddp_resnet18_no_pool/train_resnet18.json.gz": ["device-memory-churn"],
}


@pytest.mark.parametrize("name", CAPTURES)
def test_time_in_calls_that_wait_is_not_launch_bound(shared_data: Path, name: str) -> None:
    path = shared_data / "kineto" / "tracelens" / name
    tables = lazy(read_files([path]))
    summary = summarise(tables)
    waited = sum(event.duration for event in oracle.load(path).host if event.name in CAPTURES[name])
    parts = {part.name: part.total_ns for part in summary.split}
    assert parts["sync"] == pytest.approx(waited, rel=0.12)  # the device works on during some of the waits
    assert parts["host only"] < 0.02 * summary.steps.total_ns
    assert [finding.cause for finding in found_in(Observed(tables))] == CAUSES[name]


def test_a_call_that_most_of_its_copy_runs_in_waits(shared_data: Path) -> None:
    """Given ResNet-50 of 2021, whose images come from pageable memory and whose labels are copied behind the call.

    The calls for images last as long as their copies, 3 ms, and return 50 µs before them: they are waits as well.
    """
    path = next((shared_data / "kineto/kineto/resnet50_num_workers_4").glob("*.json.gz"))
    trace = oracle.load(path)
    tables = lazy(read_files([path]))
    summary = summarise(tables)
    expected = sum(oracle.measure(trace, start, end).split["sync"] for _, start, end in oracle.windows(trace))
    found = {part.name: part.total_ns for part in summary.split}["sync"]
    assert found == expected
    blocking = [one for one in trace.host if one.name == "cudaMemcpyAsync" and one.duration > 1_000_000]
    assert len(blocking) == summary.steps.count
    assert found > 0.5 * sum(one.duration for one in blocking)  # the device works on during some of the waits
    texts = [evidence.text for finding in found_in(Observed(tables)) for evidence in finding.evidence]
    assert [text for text in texts if "Memcpy" in text] == []  # more work per call saves nothing there


def test_counts_of_calls_are_words(shared_data: Path) -> None:
    path = shared_data / "kineto/tracelens/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz"
    found = found_in(Observed(lazy(read_files([path]))))
    texts = [text for finding in found for text in (finding.title, *(evidence.text for evidence in finding.evidence))]
    assert any("1 call" in text for text in texts)
    assert [text for text in texts if re.search(r"\b1 calls|\de[+-]\d", text)] == []
