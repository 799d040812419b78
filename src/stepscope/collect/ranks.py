"""Find this process's rank and job from the variables that launchers set in the environment."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Variables of (rank, world size, local rank) by launcher, in order of precedence. `accelerate` and `deepspeed` set
#: torchrun's; Intel MPI sets MPICH's. Of SLURM's numbers of tasks only `srun` sets that of a step: in a script of
#: `sbatch`, which is one process, SLURM_NTASKS is the number of tasks that the script may start.
LAUNCHERS: dict[str, tuple[str, str, str]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "MindSpore": ("RANK_ID", "RANK_SIZE", "DEVICE_ID"),
    "Paddle": ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
}

#: Variables that say how many ranks of the job run on this machine: torchrun's (as of accelerate and deepspeed), those
#: of Open MPI, MVAPICH, MPICH and Paddle.
_ON_THIS_MACHINE = (
    *("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    "PADDLE_LOCAL_SIZE",
)

#: Hosts that mean another machine on every machine.
_LOOPBACK = re.compile(r"localhost|127\.|\[?::1\]?$|0\.0\.0\.0")


@dataclass(frozen=True)
class JobRank:
    """Rank of this process in its job.

    Attributes:
        rank: Rank in the job; 0 for a single process.
        world_size: Number of processes in the job.
        local_rank: Rank on this machine.
        found_by: Source: a key of :data:`LAUNCHERS`, ``torch.distributed``, ``jax.distributed``,
            ``mindspore.communication``, or ``alone``.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    found_by: str = "alone"


def find_job_rank(environment: Mapping[str, str] = os.environ) -> JobRank:
    """Return the rank of this process; what a framework has been told takes precedence over the environment."""
    return (
        _from_torch(environment)
        or _from_jax(environment)
        or _from_environment(environment)
        or _from_mindspore()
        or JobRank()
    )


def local_ranks(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return how many ranks of the job run on this machine, as its launcher says; None where it does not."""
    return next(filter(None, (_number(environment.get(name)) for name in _ON_THIS_MACHINE)), None)


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
    """Read what ``jax.distributed.initialize`` has set, also after ``shutdown``.

    ``jax.process_index`` would initialise JAX's devices.
    """
    state = _jax_state()
    if getattr(state, "coordinator_address", None) is None:
        return None
    rank = int(state.process_id)
    launched = _from_environment(environment)
    local_rank = launched.local_rank if launched is not None and launched.rank == rank else rank
    return JobRank(rank, int(state.num_processes), local_rank, "jax.distributed")


def _jax_state() -> Any:  # noqa: ANN401 - JAX's own
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)


def _from_mindspore() -> JobRank | None:
    """Ask MindSpore: with ``msrun`` on several machines, its scheduler assigns the ranks."""
    module: Any = sys.modules.get("mindspore.communication._comm_helper")
    if not getattr(getattr(module, "GlobalComm", None), "INITED", False):
        return None
    communication = sys.modules["mindspore"].communication
    rank, size = int(communication.get_rank()), int(communication.get_group_size())
    return JobRank(rank, size, rank, "mindspore.communication") if size > 1 else None


def _from_environment(environment: Mapping[str, str]) -> JobRank | None:
    for launcher, names in LAUNCHERS.items():
        rank, world_size, local_rank = (_number(environment.get(name)) for name in names)
        if rank is not None and (world_size or 0) > rank:
            return JobRank(rank, world_size or 1, rank if local_rank is None else local_rank, launcher)
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


@dataclass(frozen=True)
class LaunchedJob:
    """Key that all ranks of one job derive without communication; jobs that run at the same time have different keys.

    Attributes:
        digest: 16 hexadecimal digits.
        certain: Whether a launcher named the job. If not, the key stands for the address at which the ranks meet or
            for the children of one process, and a later job may have the same key.
    """

    digest: str
    certain: bool


def find_job(environment: Mapping[str, str] = os.environ) -> LaunchedJob:
    """Return the key of this process's job."""
    named = _named_job(environment)
    parent = ("parent", socket.gethostname(), *map(str, process_key(os.getppid())))
    parts = named or _meeting_point(environment) or parent
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return LaunchedJob(digest, certain=named is not None)


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


def _meeting_point(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the address at which the ranks of a framework meet: the same for all, whatever started them."""
    coordinator = str(getattr(_jax_state(), "coordinator_address", None) or "")
    masters = (
        ("jax", coordinator.rpartition(":")[0], coordinator.rpartition(":")[2]),
        ("paddle", *_values(environment, "PADDLE_TRAINER_ENDPOINTS"), "several"),
        ("mindspore", *_values(environment, "MS_SCHED_HOST", "MS_SCHED_PORT")),
        ("torch", *_values(environment, "MASTER_ADDR", "MASTER_PORT")),
    )
    for framework, host, port in masters:
        if host and port:
            here = (socket.gethostname(),) if _LOOPBACK.match(host) else ()
            return ("address", framework, host, port, *here, *_values(environment, "TORCHELASTIC_RESTART_COUNT"))
    return None


def _values(environment: Mapping[str, str], *names: str) -> list[str]:
    return [environment.get(name, "") for name in names]


def process_key(pid: int) -> tuple[int, str]:
    """Return a process and when it started, in clock ticks since boot: unique even if the system reuses its pid.

    The second part is empty if the process has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called in training processes; pathlib adds nothing
            return pid, file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return pid, ""
