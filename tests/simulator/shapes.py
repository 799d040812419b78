"""What kind of job: how many ranks, how they divide the work, how large a step is, who wrote the files."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.simulator.plans import Noise

#: The kinds of jobs, and how often a random one is of each.
KINDS = {"ddp": 0.4, "fsdp": 0.2, "moe": 0.15, "3d": 0.25}


@dataclass(frozen=True)
class Shape:
    """A job.

    Attributes:
        kind: ``ddp``, ``fsdp``, ``moe`` (data parallel, with experts that are spread over ranks) or ``3d``.
        ranks: Number of ranks.
        seed: Of everything that is drawn.
        steps: How many steps are recorded.
        first_step: Number of the first.
        events: About how many events a rank's file holds.
        step_ns: What a step computes.
        communicates: What collectives take when all ranks arrive at once, as a share of ``step_ns``.
        device: Whether ranks have a GPU; without one they compute on the host and communicate through gloo.
        tensor, pipeline, experts: Sizes of the groups of tensor, pipeline and expert parallelism.
        microbatches: Of a step of a pipeline.
        batched: Whether a stage exchanges messages in batches, whose kernels say nothing of them.
        hybrid: Whether parameters are sharded within hosts and replicated between them.
        ranks_per_host: How many ranks share a host, and its clock.
        model: ``transformer``, ``convolutions`` or ``perceptron``.
        buckets: Into how many buckets DDP divides the gradients.
        synchronises: Whether the program waits for the device once a step, as ``loss.item()`` does.
        dialect: Version of PyTorch whose way of writing files is imitated: ``2.1``, ``2.4`` or ``2.13``.
        naming: Whose names process groups have: ``torch``, ``megatron`` or ``mesh``.
        loader_ns: What the host waits for a batch.
        drift_ppm: Largest drift of a clock.
        offset_ns: Largest offset of a clock.
        flows: Whether the files hold the arrows between launches and kernels.
        modules: Whether the files hold the calls of modules, as ``with_stack`` gives them.
        stages_first: Whether the stages of a pipeline are neighbours, and replicas lie far apart; else the reverse.
    """

    kind: str = "ddp"
    ranks: int = 8
    seed: int = 0
    steps: int = 4
    first_step: int = 10
    events: int = 1_000
    step_ns: float = 50e6
    communicates: float = 0.15
    device: bool = True
    tensor: int = 1
    pipeline: int = 1
    experts: int = 1
    microbatches: int = 1
    batched: bool = False
    hybrid: bool = False
    ranks_per_host: int = 8
    model: str = "transformer"
    optimizer: str = "AdamW"
    buckets: int = 4
    synchronises: bool = True
    dialect: str = "2.4"
    naming: str = "torch"
    loader_ns: float = 200_000.0
    drift_ppm: float = 50.0
    offset_ns: float = 3e9
    flows: bool = False
    modules: bool = False
    stages_first: bool = False
    noise: Noise = field(default_factory=Noise)

    @property
    def data(self) -> int:
        """Number of ranks that share the same part of the model."""
        return self.ranks // (self.tensor * self.pipeline)

    def host_of(self, rank: int) -> int:
        """Return the number of the host that a rank runs on."""
        return rank // self.ranks_per_host


def _part(ranks: int, rng: np.random.Generator, most: int) -> int:
    """Return a divisor of the number of ranks that is a power of two."""
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= most and ranks % size == 0]
    return int(rng.choice(sizes))


def random_shape(seed: int, ranks: int, kind: str | None = None) -> Shape:
    """Return a job as they are found: of any kind, size and length."""
    rng = np.random.default_rng([seed, ranks, 1])
    kind = kind or str(rng.choice(list(KINDS), p=list(KINDS.values())))
    if ranks < 4 and kind == "3d":
        kind = "ddp"
    pipeline = max(2, _part(ranks, rng, min(8, ranks))) if kind == "3d" else 1
    tensor = _part(ranks // pipeline, rng, 8) if kind == "3d" else 1
    device = kind != "ddp" or bool(rng.random() < 0.75)
    # A pipeline has many microbatches, each with messages: its steps are longer.
    shortest = 1e8 if kind == "3d" else 5e6
    step_ns = float(10 ** rng.uniform(np.log10(shortest), np.log10(2e9)))
    steps = round(float(np.exp(rng.uniform(np.log(2), np.log(7.0 if kind == "3d" else 31.0)))))
    microbatches = pipeline * int(rng.choice([1, 2])) if kind == "3d" else 1
    least = steps * (60 + 130 * microbatches)
    ranks_per_host = int(rng.choice([size for size in (1, 2, 4, 8) if size <= ranks]))
    hybrid = kind == "fsdp" and 1 < ranks_per_host < ranks and bool(rng.random() < 0.5)
    several_groups = hybrid or kind in ("moe", "3d")
    return Shape(
        kind=kind,
        ranks=ranks,
        seed=seed,
        steps=min(max(steps, 2), 30),
        first_step=int(rng.choice([0, 2, 5, 10, 100, 5_003])),
        events=max(least, int(10 ** rng.uniform(3, 3.7))),
        step_ns=step_ns,
        communicates=float(rng.uniform(0.04, 0.35)),
        device=device,
        tensor=tensor,
        pipeline=pipeline,
        experts=max(2, _part(ranks, rng, 8)) if kind == "moe" else 1,
        microbatches=microbatches,
        batched=kind == "3d" and bool(rng.random() < 0.3),
        ranks_per_host=ranks_per_host,
        hybrid=hybrid,
        model=str(rng.choice(["transformer", "convolutions", "perceptron"]) if kind == "ddp" else "transformer"),
        optimizer=str(rng.choice(["AdamW", "SGD", "FusedAdam"])),
        buckets=int(rng.integers(1, 7)),
        synchronises=bool(rng.random() < 0.7),
        # Version 2.1 says nothing of groups: where a rank is in several, nobody can tell them apart.
        dialect=str(rng.choice(["2.1", "2.4", "2.13"], p=[0, 0.5, 0.5] if several_groups else [0.1, 0.5, 0.4])),
        naming="megatron" if kind == "3d" and rng.random() < 0.6 else str(rng.choice(["torch", "mesh"])),
        loader_ns=float(rng.choice([50e3, 200e3, 0.02 * step_ns])),
        drift_ppm=float(rng.choice([0.0, 5.0, 50.0], p=[0.1, 0.5, 0.4])),
        offset_ns=float(rng.choice([0.0, 1e6, 3e9], p=[0.1, 0.3, 0.6])),
        flows=bool(rng.random() < 0.3),
        modules=bool(rng.random() < 0.4),
        stages_first=bool(rng.random() < 0.3),
        noise=Noise(
            ranks=float(rng.uniform(0.002, 0.012)),
            kernels=float(rng.uniform(0.004, 0.03)),
            hosts=float(rng.uniform(0.01, 0.04)),
            calls=float(rng.uniform(0.05, 0.2)),
            batches=float(rng.choice([0.0, 0.01, 0.03], p=[0.4, 0.4, 0.2])),
            loaders=float(rng.uniform(0.05, 0.4)),
            jitter_ns=float(rng.choice([500.0, 2_000.0, 5_000.0], p=[0.25, 0.6, 0.15])),
        ),
    )
