"""Compare the native recorder with CUPTI to Kineto on this machine's GPUs.

``python -m stepscope.trial`` records the same small training with both, each in a separate process, compares the tables
and stores the result: ``collector="auto"`` uses Kineto for GPUs until a trial has found no difference. Only
``stepscope doctor --build`` runs it, never a training, because some GPUs allow one process only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

import stepscope
from stepscope.collect.doctor.diagnosis import PARTLY, YES, Check, ask
from stepscope.collect.torch import native_build
from stepscope.run import RankRun, Run
from stepscope.trace.tables import Tables

#: Seconds for the whole trial: torch is imported three times.
_PATIENCE = 360.0

#: Recorded steps.
_STEPS = 3

#: Tolerance in ns for a kernel that appears to begin before its launch, because host and device clocks differ.
_CLOCKS_APART = 100_000

_Rows: TypeAlias = list[tuple[Any, ...]]


def check() -> Check | None:
    """Run the trial on this machine's GPUs and store its result; None if torch is not installed or finds no GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    facts = ask("stepscope.trial", of="torch", seconds=_PATIENCE)
    reason = facts["error"] if "error" in facts else facts["gpus"]
    if reason is None:
        return None
    if reason:
        return Check("GPU, natively", PARTLY, reason, "Kineto records this machine's GPUs; nothing is lost.")
    return Check("GPU, natively", YES, "a trial recorded the same as Kineto; recordings now use it")


def attempt(device: str) -> str:
    """Record the same training with both.

    Args:
        device: Device of the training, ``cuda`` or ``cpu``.

    Returns:
        The differences, or why one of them failed; empty if they agree.
    """
    with tempfile.TemporaryDirectory(prefix="stepscope-trial-") as directory:
        ranks = []
        for collector in ("native", "kineto"):
            output = Path(directory) / collector
            failure = native_build.failure_of("stepscope.trial", collector, device, str(output), gpus=True)
            if failure:
                return f"{collector} {failure}"
            ranks.append(Run(next(output.iterdir())).ranks[0])
        ours, theirs = ranks
        if device != "cpu" and not _work(theirs.tables):
            return "kineto recorded no device work"
        return _failure(ours) or "; ".join(differences(ours.tables, theirs.tables))


def differences(ours: Tables, theirs: Tables) -> Iterator[str]:
    """Yield the differences between two recordings of one program, ours and Kineto's, in words."""
    compared: dict[str, Callable[[Tables], _Rows]] = {"operators": _operators, "memory": _memory, "device": _work}
    for what, rows in compared.items():
        mine, others = Counter(rows(ours)), Counter(rows(theirs))
        missing, more = others - mine, mine - others
        for which, found in (("fewer", missing), ("more", more)):
            if found:
                yield f"{what}: {found.total()} {which} than Kineto's {others.total()}, such as {next(iter(found))}"
    early = _before_their_launch(ours)
    if early:
        yield f"device: {early} begin before their launch"
    busy, theirs_busy = _busy(ours), _busy(theirs)
    if not busy <= 2 * theirs_busy <= 4 * busy:
        yield f"device: busy for {busy} ns, with Kineto for {theirs_busy} ns"


def _spans(tables: Tables) -> pl.LazyFrame:
    return tables["spans"].select("id", "ts", pl.col("name", "kind").cast(pl.String))


def _operators(tables: Tables) -> _Rows:
    """Return name and shapes of every operator."""
    spans = _spans(tables).filter(pl.col("kind") == "operator")
    rows = spans.join(tables["operators"], left_on="id", right_on="span", how="left")
    return rows.select("name", pl.col("shapes").cast(pl.String)).collect().rows()


def _memory(tables: Tables) -> _Rows:
    """Return device and bytes of every allocation and free."""
    return tables["allocations"].select(pl.col("device").cast(pl.String), "bytes").collect().rows()


def _work(tables: Tables) -> _Rows:
    """Return every kernel, copy and fill: its attributes, whether its launch is known, and its operator."""
    spans = _spans(tables)
    work = tables["kernels"].join(spans, left_on="span", right_on="id")
    operators = spans.select(operator="id", caller="name")
    sizes = pl.col("grid", "block").cast(pl.List(pl.String)).list.join("x")
    rows = work.join(operators, on="operator", how="left").select(
        "kind",
        pl.when(pl.col("kind") == "kernel").then("name"),  # the tools name copies differently
        sizes,
        "registers",
        "bytes",
        pl.col("launch").is_not_null(),
        "caller",
    )
    return rows.collect().rows()


def _before_their_launch(tables: Tables) -> int:
    """Count the work that begins before it is launched."""
    begun = _spans(tables).select("id", begun="ts")
    launched = _spans(tables).select("id", launched="ts")
    work = tables["kernels"].join(begun, left_on="span", right_on="id").join(launched, left_on="launch", right_on="id")
    return work.filter(pl.col("begun") < pl.col("launched") - _CLOCKS_APART).collect().height


def _busy(tables: Tables) -> int:
    """Return the summed durations of the work in ns."""
    work = tables["kernels"].join(tables["spans"], left_on="span", right_on="id")
    return int(work.select(pl.col("dur").sum()).collect().item())


def _failure(ours: RankRun) -> str:
    """Return why the native recording failed, from its manifest; empty if it did not."""
    collectors = ours.manifest["collectors"]
    if collectors["torch"].get("recorder") != "native":
        return str(collectors["torch"].get("native", "Kineto recorded"))
    device = collectors["cupti"]
    return str(device.get("failed") or device.get("unavailable") or "")


def record(collector: str, device: str, output: Path) -> None:
    """Record the training in this process."""
    torch = import_module("torch")
    step = _training(torch, device)
    for _ in range(2):  # one-time initialisation is not recorded
        step()
    options: dict[str, Any] = {"record_shapes": True, "profile_memory": True, "counters_hz": 0, "stacks_hz": 0}
    with stepscope.profile(output=output, collector=collector, analyse="later", **options) as window:
        for _ in range(_STEPS):
            step()
    window.recorded[0].wait()


def _training(torch: Any, device: str) -> Callable[[], None]:  # noqa: ANN401 - torch has no stubs here
    """Return a training step; on a GPU it also uses a second stream and a graph."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(128, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(batch.to(device)).sum().backward()
        optimizer.step()

    if device == "cpu":
        return step
    cuda, values = torch.cuda, torch.ones(1 << 16, device=device)
    side, graph = cuda.Stream(), cuda.CUDAGraph()
    values.mul(2).add(1)
    cuda.synchronize()
    with cuda.graph(graph):
        values.mul(2).add(1)

    def step_and_more() -> None:
        step()
        with cuda.stream(side):
            values.mul(2)
        graph.replay()
        cuda.synchronize()

    return step_and_more


def main() -> None:
    """Run the trial, store the result and print it as JSON; with the arguments collector, device, output: record."""
    if sys.argv[1:]:
        collector, device, output = sys.argv[1:]
        record(collector, device, Path(output))
        return
    # torch may print while it is imported: its output goes to standard error, the result to standard output.
    answer = os.dup(1)
    os.dup2(2, 1)
    torch = import_module("torch")
    reason = None
    if torch.version.cuda and torch.cuda.is_available():
        known = native_build.installed(torch)
        try:
            native_build.remember_gpus(known, "a trial did not finish")
            reason = attempt("cuda")
            native_build.remember_gpus(known, reason)
        except OSError as error:
            reason = f"the trial failed, or its result cannot be stored ({error})"
    os.write(answer, f"{json.dumps({'gpus': reason})}\n".encode())


if __name__ == "__main__":
    main()
