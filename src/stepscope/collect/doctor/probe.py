"""Record a trial with an installed framework: ``python -m stepscope.collect.doctor.probe NAME``.

It is a separate process because importing a framework takes seconds and a broken one may crash. The last line on
standard output is a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.collect.frameworks import FRAMEWORKS


def probe_torch() -> dict[str, Any]:
    """Import torch, query its features, and record a trial window on every device it has."""
    torch = import_module("torch")
    facts: dict[str, Any] = {
        "version": str(torch.__version__),
        "path": str(Path(torch.__file__ or "").parent),
        "kineto": bool(torch.autograd.kineto_available()),
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "cuda": _attempt(lambda: _cuda(torch)),
        "distributed": _attempt(lambda: _backends(torch)),
        "dataloader": _attempt(lambda: hasattr(import_module("torch.utils.data.dataloader"), "_BaseDataLoaderIter")),
        "recorder": _attempt(lambda: _recorder(torch)),
    }
    if facts["kineto"]:
        facts["activities"] = _attempt(lambda: sorted(item.name for item in torch.profiler.supported_activities()))
        facts["trial"] = _attempt(lambda: _trial(torch))
    return facts


def _attempt(ask: Any) -> Any:  # noqa: ANN401 - any question, any answer
    """Return the answer, or the error as text, so that one broken part does not hide the others."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - the answer is the error
        ours = type(error).__module__.startswith("stepscope.")  # says by itself what happened
        return {"error": " ".join((str(error) if ours else f"{type(error).__name__}: {error}").split())}


def _cuda(torch: ModuleType) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"devices": []}
    return {"devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]}


def _backends(torch: ModuleType) -> list[str]:
    distributed = torch.distributed
    if not distributed.is_available():
        return []
    return [name for name in ("nccl", "gloo", "mpi", "ucc") if getattr(distributed, f"is_{name}_available", bool)()]


def _recorder(torch: ModuleType) -> dict[str, str | None]:
    """Return whether the native recorder is built or why it cannot be, and why it cannot record torch's GPUs."""
    from stepscope.collect.torch import native_build as recorder

    known = recorder.installed(torch)
    reason = recorder.reason_against(known)
    if reason:
        return {"reason": reason}
    built = recorder.is_built(known)
    if built:
        recorder.load(built)  # in this process, which it may crash
    gpus = recorder.reason_against_gpus(known) if torch.version.cuda and torch.cuda.is_available() else None
    return {"built": str(built or ""), "gpus": gpus}


def build_recorder() -> dict[str, Any]:
    """Import torch and build the native recorder for it, also if an earlier build failed."""
    from stepscope.collect.torch import native_build as recorder

    torch = import_module("torch")
    return dict(_attempt(lambda: {"built": str(recorder.obtain(recorder.installed(torch), again=True))}))


def _trial(torch: ModuleType) -> dict[str, int]:
    """Record a sum on the CPU or, if torch finds one, on a CUDA device; return the number of events."""
    FRAMEWORKS["torch"].trial(torch)  # initialises the device before the window
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as window:
        FRAMEWORKS["torch"].trial(torch)
    names = [str(event.device_type()) for event in window.profiler.kineto_results.events()]
    on_device = sum(name.rpartition(".")[2] != "CPU" for name in names)
    return {"host": len(names) - on_device, "device": on_device}


def probe_window(name: str) -> dict[str, Any]:
    """Import a framework other than torch, and record its trial with its collector."""
    from stepscope.collect.start.profile import profile

    module = import_module(name)
    facts = {"version": str(module.__version__), "path": str(Path(module.__file__ or "").parent)}
    with tempfile.TemporaryDirectory() as output:
        with profile(output=output, analyse="later") as trial:
            FRAMEWORKS[name].trial(module)
        trial.recorded[0].wait()
        state = trial.recorded[0].manifest["collectors"][name]
    return {**facts, "trial": {key: state[key] for key in ("unavailable", "failed") if key in state}}


def main() -> None:
    """Print the facts as one line of JSON."""
    # Frameworks may print while they are imported: their output goes to standard error, the facts to standard output.
    answer = os.dup(1)
    os.dup2(2, 1)
    probes: dict[str, Callable[[], dict[str, Any]]] = {"torch": probe_torch, "recorder": build_recorder}
    name = sys.argv[1]
    facts = probes[name]() if name in probes else probe_window(name)
    os.write(answer, f"{json.dumps(facts)}\n".encode())


if __name__ == "__main__":
    main()
    # Exit without unloading, because some builds crash there; the facts are written already.
    sys.stderr.flush()
    os._exit(0)
