"""The checks of ``stepscope doctor``: what can be recorded on this machine, and why the rest cannot."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import stepscope
from stepscope import native
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.own_process import WORKING_DIRECTORY, own_command, own_environment
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.surgery import verified
from stepscope.errors import OutputError
from stepscope.native.recorder.build import compiler
from stepscope.trace.clock import take_anchor
from stepscope.trace.run_directory import check_writable

#: States of a check: it works; it works partly, or is not needed; it does not work.
YES, PARTLY, NO = "yes", "partly", "no"

#: Seconds for importing a framework and recording a trial with it.
PATIENCE = 120.0
_ROOM = 1 << 30
#: Whose memory a process may read: 0 or 1, at least its children's.
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")

#: Frameworks other than PyTorch. Only the installed ones are checked.
OTHERS = {name: framework.title for name, framework in FRAMEWORKS.items() if name != "torch"}

#: Variables by which other tools attach to CUPTI, which serves one tool only.
_INJECTIONS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "CUDA_INJECTION64_PATH": "a CUDA injection library",
    "KINETO_USE_DAEMON": "Kineto's daemon (dynolog)",
}


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: What was checked.
        state: ``yes``, ``partly`` or ``no``.
        detail: What was found, or why it does not work.
        remedy: What the user can do; empty if nothing is needed.
    """

    name: str
    state: str
    detail: str
    remedy: str = ""

    def describe(self) -> dict[str, str]:
        """Return the check as plain values."""
        return asdict(self)


def diagnose(output: Path, *, build: bool = False) -> list[Check]:
    """Check everything that a recording depends on.

    Args:
        output: Directory that recordings would go to.
        build: Build the native recorder of PyTorch's operators into the cache.

    Returns:
        The checks, in the order to show them. They leave nothing on the disk, except for the recorder that is built.
    """
    return [*_basics(), *_torch(build=build), *_others(), *_gpus(), *_host(), *_reading(), *_place(output)]


def _basics() -> Iterator[Check]:
    python = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    yield Check("stepscope", YES, f"{stepscope.__version__}, {python}, {platform.platform()}")
    anchor = take_anchor()
    yield Check("clock", YES, f"monotonic to epoch within {anchor.uncertainty} ns")


def _others() -> Iterator[Check]:
    for name, title in OTHERS.items():
        if importlib.util.find_spec(name) is None:
            continue
        facts = probe(name)
        problem = facts.get("error") or "; ".join(facts["trial"].values())
        found = problem or f"{facts['version']} at {facts['path']}; a window was recorded in a trial"
        yield Check(title, NO if problem else YES, found, facts.get("remedy", ""))
    yield from map(_gate, verified.installed())


def _gate(library: verified.Installed) -> Check:
    """Say whether stepscope may read and change the memory of a framework's library."""
    name, (_, version, machine, identity, _) = (
        f"{OTHERS[verified.LIBRARIES[library.path.name][0]]} internals",
        library.row,
    )
    if library.verified:
        return Check(name, YES, f"{library.path.name} {version} is a build that stepscope was verified on")
    reason = library.fault or f"stepscope was not verified on {library.path.name} {version} ({machine}, {identity})"
    remedy = "What reads or changes its memory is off; stepscope/collect/surgery/README.md says what is then missing."
    return Check(name, PARTLY, reason, remedy)


def _torch(*, build: bool) -> Iterator[Check]:
    facts = probe_torch()
    if "error" in facts:
        missing = importlib.util.find_spec("torch") is None and any(map(importlib.util.find_spec, OTHERS))
        yield Check("PyTorch", PARTLY if missing else NO, facts["error"], "" if missing else facts.get("remedy", ""))
        return
    yield Check("PyTorch", YES, f"{facts['version']} at {facts['path']}")
    recorder = _recorder(probe("recorder") if build else facts["recorder"])
    yield _operators(facts, recorder)
    yield recorder
    yield _device(facts)
    yield from _other_devices(facts)
    yield _collectives(facts)
    yield _data_loader(facts)
    yield _alone()


def _gpus() -> Iterator[Check]:
    """Run the checks that need a GPU but no framework."""
    from stepscope.collect.cuda.cupti_collector import CuptiCollector
    from stepscope.collect.cuda.nvml import NvmlCollector

    reasons = {
        "CUDA kernels (CUPTI)": CuptiCollector().available(),
        "GPU counters (NVML)": NvmlCollector().available(),
    }
    for name, reason in reasons.items():
        yield Check(name, PARTLY if reason else YES, reason or "can be recorded")


def probe_torch() -> dict[str, Any]:
    """Probe PyTorch in a separate process; see :func:`probe`."""
    if importlib.util.find_spec("torch") is None:
        return {"error": "not installed", "remedy": "pip install torch"}
    return probe("torch")


def probe(name: str) -> dict[str, Any]:
    """Probe an installed framework in a separate process.

    Args:
        name: Its module.

    Returns:
        The result of :mod:`stepscope.collect.doctor.probe`; on failure ``error``, and optionally ``remedy``.
    """
    return ask("stepscope.collect.doctor.probe", name, of=name, seconds=PATIENCE)


def ask(module: str, *arguments: str, of: str, seconds: float) -> dict[str, Any]:
    """Run one of our modules, whose last line of output is a JSON object.

    Args:
        module: Its name.
        arguments: For it.
        of: Package of the framework, for the error message.
        seconds: Time limit.

    Returns:
        The object; on failure one with ``error`` and optionally ``remedy``.
    """
    try:
        # S603: our own module, run with this Python.
        done = subprocess.run(  # noqa: S603
            own_command(module, *arguments),
            env=own_environment(),
            cwd=WORKING_DIRECTORY,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing it and recording a trial takes longer than {seconds:.0f} s"}
    except OSError as error:
        return {"error": f"no process could be started for a trial: {error}"}
    if done.returncode < 0:
        return {
            "error": f"it crashes its process ({signal.Signals(-done.returncode).name})",
            "remedy": f"Install it again: pip install --force-reinstall {of}",
        }
    try:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": f"cannot be imported: {last[-1]}", "remedy": f"Try `python -c 'import {of}'`."}
    return facts


def _operators(facts: Mapping[str, Any], recorder: Check) -> Check:
    if not facts["kineto"]:
        return Check("operators", NO, "this PyTorch was built without Kineto", "Install a build of pytorch.org.")
    trial = facts["trial"]
    if "error" in trial:
        return Check("operators", NO, trial["error"])
    by = "by the native recorder, or by Kineto for what it does not serve" if recorder.state == YES else "by Kineto"
    return Check("operators", YES, f"recorded {by}; {trial['host']:,} host events in a trial of Kineto")


def _recorder(found: Mapping[str, Any]) -> Check:
    name = "native recorder"
    reason = found.get("reason") or found.get("error")
    if reason:
        return Check(
            name, PARTLY, reason, found.get("remedy") or "Kineto records operators instead, with more overhead."
        )
    if not found["built"]:
        return Check(name, YES, "is built on first use; `stepscope doctor --build` builds it now")
    left = found.get("gpus")
    return Check(name, YES, f"built: {found['built']}" + (f"; Kineto records GPUs: {left}" if left else ""))


def _device(facts: Mapping[str, Any]) -> Check:
    name = "GPU kernels"
    build = facts["cuda_build"] or facts["hip_build"]
    if not build:
        return Check(
            name, NO, "this PyTorch was built without CUDA", "If this machine has a GPU, install a CUDA build."
        )
    if "error" in facts["cuda"]:
        return Check(name, NO, facts["cuda"]["error"])
    devices = facts["cuda"]["devices"]
    if not devices:
        return Check(name, NO, f"no GPU is visible to CUDA {build}{_hidden()}", "Check that nvidia-smi lists one.")
    if "CUDA" not in (facts.get("activities") or []):
        return Check(name, NO, "this PyTorch's Kineto was built without CUPTI", "Install a build of pytorch.org.")
    found = f"{len(devices)} x {devices[0]}, CUDA {build}"
    recorded = facts["trial"].get("device", 0)
    if not recorded:
        reason = facts["trial"].get("error", "CUPTI delivered nothing in a trial")
        return Check(
            name, NO, f"{found}: {reason}", "Stop other profilers of this GPU, and check that CUPTI fits the driver."
        )
    return Check(name, YES, f"{found}; {recorded} device events in a trial (no special permission needed)")


def _hidden() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"


def _other_devices(facts: Mapping[str, Any]) -> Iterator[Check]:
    activities = facts.get("activities")
    for name in activities if isinstance(activities, list) else ():
        if name not in ("CPU", "CUDA"):
            yield Check(f"{name} kernels", YES, "this PyTorch can record them")


def _collectives(facts: Mapping[str, Any]) -> Check:
    backends = facts["distributed"]
    if not isinstance(backends, list):
        return Check("collectives", NO, backends["error"])
    if not backends:
        return Check("collectives", NO, "this PyTorch was built without torch.distributed")
    return Check("collectives", YES, f"backends: {', '.join(backends)}")


def _data_loader(facts: Mapping[str, Any]) -> Check:
    if facts["dataloader"] is True:
        return Check("data waits", YES, "every next() of a DataLoader")
    found = facts["dataloader"]
    return Check(
        "data waits", NO, found["error"] if isinstance(found, dict) else "this version's DataLoader is unknown"
    )


def _alone() -> Check:
    present = [f"{tool} ({name})" for name, tool in _INJECTIONS.items() if os.environ.get(name)]
    if not present:
        return Check("other profilers", YES, "none in the environment")
    remedy = "If kernels are missing, run without it: a GPU serves one profiler at a time."
    return Check("other profilers", PARTLY, f"{', '.join(present)} is set", remedy)


def _host() -> Iterator[Check]:
    listens = hasattr(gc, "callbacks")
    yield Check("garbage collections", YES if listens else NO, "gc.callbacks" if listens else "no gc.callbacks here")
    yield _sampled_stacks()
    yield _counters()


def _sampled_stacks() -> Check:
    from stepscope.collect.host.stack_samples import StackSampler

    name = "sampled Python stacks"
    sampler = StackSampler()
    reason = sampler.reason
    sampler.close()
    if reason:
        remedy = "Which lines of Python code take time is unknown. `--stacks` records the stack of every operator."
        return Check(name, NO, reason, remedy)
    with contextlib.suppress(OSError, ValueError):  # the file is missing if the kernel has no such switch
        scope = int(_YAMA.read_text())
        if scope > 1:
            remedy = "Lines of data loaders' workers are unknown. A process may read its children with 0 or 1."
            return Check(name, PARTLY, f"of this process, not of its workers: {_YAMA} is {scope}", remedy)
    return Check(name, YES, "read without the GIL; a test read of this process is right")


def _counters() -> Check:
    version = _version("psutil")
    if version is None:
        return Check("host counters", NO, "psutil is not installed", "pip install psutil")
    from stepscope.collect.host import host_counters

    missing = {}
    for source in host_counters.sources(period_ns=1):
        try:
            list(source.read())
        except Exception as error:  # noqa: BLE001 - the error is the result of the check
            missing[source.name] = f"{type(error).__name__}: {error}"
    if missing:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in missing.items())
        return Check("host counters", PARTLY, f"psutil {version}; unavailable: {reasons}")
    return Check("host counters", YES, f"psutil {version}: CPU, memory, threads, disk, network")


def _reading() -> Iterator[Check]:
    yield _native()
    in_c = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    compilers = {
        "C compiler": (in_c, "Only an install of stepscope from source needs one, for its fast readers."),
        "C++ compiler": (compiler(), "Only the native recorder of PyTorch's operators needs one: c++, g++ or clang++."),
    }
    for name, (path, use) in compilers.items():
        yield Check(name, YES if path else PARTLY, path or "none found", "" if path else use)
    for name, use in {"polars": "tables", "msgspec": "JSON", "isal": "gzip", "rich": "terminal"}.items():
        version = _version(name)
        found = f"{version}" if version else "not installed"
        yield Check(f"{name} ({use})", YES if version else NO, found, "" if version else f"pip install {name}")


def _native() -> Check:
    name = "fast Kineto reader"
    reason = native.available()
    if reason is None:
        return Check(name, YES, "built in C")
    remedy = "Traces are read more slowly without it. To build it, install a C compiler, then reinstall stepscope."
    return Check(name, PARTLY, reason, remedy)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _place(output: Path) -> Iterator[Check]:
    place = find_job_rank()
    where = "a single process" if place.found_by == "alone" else f"local rank {place.local_rank}, from {place.found_by}"
    yield Check("rank", YES, f"{place.rank} of {place.world_size} ({where})")
    made = [directory for directory in (output, *output.parents) if not os.access(directory, os.F_OK)]
    try:
        check_writable(output)
        free = shutil.disk_usage(output).free
    except (OutputError, OSError) as error:
        yield Check("output", NO, getattr(error, "message", str(error)), "Choose another with --output.")
        return
    finally:
        _remove_empty(made)
    detail = f"{output.absolute()}, {free / 1e9:.1f} GB free"
    few = free < _ROOM
    yield Check("output", PARTLY if few else YES, detail, "A long window can take gigabytes." if few else "")


def _remove_empty(directories: list[Path]) -> None:
    """Remove the directories that the check has made, innermost first."""
    for directory in directories:
        with contextlib.suppress(OSError):  # another process has put a file into it
            directory.rmdir()
