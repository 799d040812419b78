"""How fast this machine is with a framework: measured once in a process of its own, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.machine.machine_facts import machine
from stepscope.collect.own_process import WORKING_DIRECTORY, own_command, own_environment
from stepscope.collect.torch.recorder_cache import directory, open_directory
from stepscope.trace.run_directory import write_atomically

#: Seconds after which a trial that hangs is ended; the import of a framework may take most of them.
_PATIENCE = 60
#: Seconds after which a trial that other processes disturbed is repeated.
_AGAIN = 3600
_NS = 1_000_000_000
#: Number of what a trial measures; a cache of another content is not read.
_CONTENT = 4


def reference_speeds(framework: str, version: str, *, threads: int = 0, device: str = "cpu") -> dict[str, Any] | None:
    """Return what :func:`.speed_trial.measure` says of this machine, from the cache or a new trial.

    A trial takes less than 2 s of computing, and the import of the framework. It is for the time after a training: it
    uses all cores that this process may use.

    Args:
        framework: Its package.
        version: Its version.
        threads: Threads that compute; 0 leaves the framework's choice.
        device: ``cpu`` or ``cuda``.

    Returns:
        The speeds, with ``measured_ns``, the time of the trial; None if there can be no trial here.
    """
    facts = machine()
    key = [facts[name] for name in ("cpu_model", "cpu_features", "cores", "cpu_quota", "memory_limit")]
    asked = [_CONTENT, framework, version, threads, device]
    name = hashlib.sha256(json.dumps([*key, *asked, facts["environment"]]).encode()).hexdigest()[:24]
    path = directory() / f"speeds-{name}.json"
    kept = _kept(path)
    if kept is not None and not (kept.get("disturbed") and time.time_ns() - kept["measured_ns"] > _AGAIN * _NS):
        return kept
    try:
        open_directory(path.parent)
    except OSError:  # without a cache every run would measure
        return None
    measured = _measured(framework, threads, device)
    if measured is None:
        return kept
    with suppress(OSError):
        write_atomically(path, json.dumps(measured).encode())
    return measured


def speeds_of_program() -> list[dict[str, Any]]:
    """Return the speeds of this machine with each framework that this process uses, with its threads and device."""
    found = []
    for name in FRAMEWORKS:
        module: Any = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if isinstance(version, str):
            found.append(reference_speeds(name, version, threads=_threads(name, module)))
            if name == "torch" and getattr(module, "cuda", None) is not None and module.cuda.is_initialized():
                found.append(reference_speeds(name, version, device="cuda"))
    return [one for one in found if one is not None]


def _threads(name: str, module: Any) -> int:  # noqa: ANN401 - the framework
    return int(module.get_num_threads()) if name == "torch" else 0


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and isinstance(kept.get("measured_ns"), int) else None


def _measured(framework: str, threads: int, device: str) -> dict[str, Any] | None:
    command = own_command("stepscope.collect.machine.speed_trial", framework, str(threads), device)
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            env=own_environment(),
            cwd=WORKING_DIRECTORY,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return {**found, "measured_ns": time.time_ns()}
