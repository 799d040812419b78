"""Settings of DistributedDataParallel that cost time in each step and change nothing: what its own functions take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from stepscope.advise.calls import of_step, recorded_calls
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.analyse.quantities import count_text, duration_text

_FILE = "torch/nn/parallel/distributed.py"
_ACCUMULATES = "torch::autograd::AccumulateGrad"


def data_parallel(observed: Observed) -> Iterator[Claim]:
    """Yield the search for parameters without gradients, where all have one, and buffers that each step sends."""
    state = observed.facts.get("torch.state")
    models = state.get("models") or [] if isinstance(state, dict) else []
    for model in (one for one in models if isinstance(one.get("ddp"), dict)):
        if model["ddp"].get("find_unused_parameters") and not model["ddp"].get("static_graph"):
            yield from _search(observed, model)
        if model["ddp"].get("broadcast_buffers"):
            yield from _buffers(observed, model)


def _search(observed: Observed, model: dict[str, Any]) -> Iterator[Claim]:
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    trained = int(model.get("trainable_parameters") or 0)
    sums = len(calls.filter(pl.col("name") == _ACCUMULATES)) / steps
    looks = observed.looks_through(_FILE, "_post_forward", "_find_tensors")
    time = float(looks["time"].sum())
    if not trained or sums < trained or not time:
        return
    yield _claim(
        observed, looks, cause="unused-parameter-search",
        title=f"{of_step(observed, time)} DistributedDataParallel searches the graph for parameters without a "
        f"gradient, and all {trained} have one",
        evidence=f"find_unused_parameters=True, and each step adds up {sums:.0f} gradients of {trained} parameters",
        remedy="Leave find_unused_parameters=True out: DistributedDataParallel(model). If other steps leave some "
        "parameters out, always the same ones: static_graph=True.",
    )  # fmt: skip


def _buffers(observed: Observed, model: dict[str, Any]) -> Iterator[Claim]:
    looks = observed.looks_through(_FILE, "_sync_buffers")
    time = float(looks["time"].sum())
    if not time:
        return
    held = sum(int(size) for size in (model.get("buffer_bytes_by_dtype") or {}).values())
    norms = count_text(int(model.get("batchnorm") or 0), "BatchNorm layer")
    yield _claim(
        observed, looks, cause="buffer-broadcasts",
        title=f"{of_step(observed, time)} the first rank sends its buffers to the others before the forward: the "
        f"statistics of {norms}",
        evidence=f"broadcast_buffers is on, as by default; the model has {held:,} bytes of buffers",
        remedy="DistributedDataParallel(model, broadcast_buffers=False): in training, BatchNorm uses the statistics of "
        "its own batch; a checkpoint of the first rank has the same buffers as before.",
    )  # fmt: skip


def _claim(observed: Observed, looks: pl.DataFrame, **says: str) -> Claim:
    time, count = float(looks["time"].sum()), max(float(looks["count"].sum()), 1.0)
    error = time / count**0.5
    finding = Finding(
        cause=says["cause"],
        title=says["title"],
        gain_ns=round(time), gain_low_ns=round(max(time - 2 * error, 0.0)), gain_high_ns=round(time + 2 * error),
        basis="the samples in which DistributedDataParallel does so",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=says["evidence"]),
            Evidence(text=f"{duration_text(time)} of the step in {count:.0f} looks at the training thread", value=time,
                     unit="ns", result="python_lines"),
        ),
        remedy=says["remedy"],
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, observed.explained(looks))
