"""Find this process's rank and job from the variables that launchers set in the environment."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Variables of (rank, world size, local rank) by launcher, in order of precedence.
LAUNCHERS: dict[str, tuple[str, str, str]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "MindSpore": ("RANK_ID", "RANK_SIZE", "DEVICE_ID"),
    "Paddle": ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
}


@dataclass(frozen=True)
class JobRank:
    """Rank of this process in its job.

    Attributes:
        rank: Rank in the job; 0 for a single process.
        world_size: Number of processes in the job.
        local_rank: Rank on this machine.
        found_by: Source: a key of :data:`LAUNCHERS`, ``torch.distributed``, ``jax.distributed``, or ``alone``.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    found_by: str = "alone"


def find_job_rank(environment: Mapping[str, str] = os.environ) -> JobRank:
    """Return the rank of this process; an initialised torch or JAX job takes precedence over the environment."""
    return _from_torch(environment) or _from_jax(environment) or _from_environment(environment) or JobRank()


def _from_torch(environment: Mapping[str, str]) -> JobRank | None:
    """Ask torch: processes that the program spawned itself have no variables of a launcher."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not getattr(distributed, "is_initialized", bool)():
        return None
    rank = int(distributed.get_rank())
    local_rank = _number(environment.get("LOCAL_RANK"))
    return JobRank(
        rank, int(distributed.get_world_size()), rank if local_rank is None else local_rank, "torch.distributed"
    )


def _from_jax(environment: Mapping[str, str]) -> JobRank | None:
    """Read what ``jax.distributed.initialize`` has set; ``jax.process_index`` would initialise JAX's devices."""
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is None:
        return None
    rank = int(state.process_id)
    launched = _from_environment(environment)
    local_rank = launched.local_rank if launched is not None and launched.rank == rank else rank
    return JobRank(rank, int(state.num_processes), local_rank, "jax.distributed")


def _from_environment(environment: Mapping[str, str]) -> JobRank | None:
    for launcher, names in LAUNCHERS.items():
        rank, world_size, local_rank = (_number(environment.get(name)) for name in names)
        if rank is not None and (world_size or 0) > rank:
            return JobRank(rank, world_size or 1, rank if local_rank is None else local_rank, launcher)
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


@dataclass(frozen=True)
class Job:
    """Key that all ranks of one job derive without communication; different jobs have different keys.

    Attributes:
        digest: 16 hexadecimal digits.
        certain: Whether a launcher named the job. If not, the key stands for the children of the parent process, and
            the next job that the same shell starts may have the same key.
    """

    digest: str
    certain: bool


def find_job(environment: Mapping[str, str] = os.environ) -> Job:
    """Return the key of this process's job."""
    named = _named_job(environment)
    parts = named or ("parent", socket.gethostname(), str(os.getppid()), _start_time(os.getppid()))
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Job(digest, certain=named is not None)


def _named_job(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    if given := environment.get("STEPSCOPE_RUN_ID"):
        return ("given", given)
    elastic = environment.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return ("elastic", elastic, *_values(environment, "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"))
    if environment.get("SLURM_JOB_ID") and environment.get("SLURM_STEP_ID"):
        restarts = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
        return ("slurm", *_values(environment, "SLURM_JOB_ID", "SLURM_STEP_ID", *restarts))
    if namespace := environment.get("PMIX_NAMESPACE"):
        return ("pmix", namespace)
    return None


def _values(environment: Mapping[str, str], *names: str) -> list[str]:
    return [environment.get(name, "") for name in names]


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot: unique even if the system reuses its pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called in training processes; pathlib adds nothing
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""
