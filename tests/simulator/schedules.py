"""The ways to train on many ranks: data parallel, sharded, with experts, in three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from tests.simulator.models import Layer
from tests.simulator.plans import Floats, Plan
from tests.simulator.shapes import Shape
from tests.simulator.training import STREAMS, Hooks, Job, Trainer, layers_of, new_job

#: Events that a step has besides those of its layers, and events per operator.
_EVENTS_PER_STEP, _EVENTS_PER_WORK = 35, 4.3


def build(shape: Shape) -> Job:
    """Return the job of a shape."""
    job = new_job(shape)
    if shape.kind == "3d":
        from tests.simulator.pipelines import three_dimensions

        three_dimensions(job)
    else:
        {"ddp": _data_parallel, "fsdp": _sharded, "moe": _with_experts}[shape.kind](job)
    return job


def layer_count(shape: Shape, passes: int = 1) -> int:
    """Return how many layers give about the wanted number of events."""
    one = layers_of(shape, 1)[0]
    works = len(one.forward) + len(one.backward) + 2
    per_work = _EVENTS_PER_WORK + 2 * shape.flows if shape.device else 3
    return max(1, round((shape.events / shape.steps - _EVENTS_PER_STEP) / (per_work * works * passes)))


def new_plan(job: Job, ranks: list[int]) -> Plan:
    """Add a plan of ranks to a job, and return it."""
    rng = np.random.default_rng([job.shape.seed, 4, len(job.plans)])
    plan = Plan(np.array(ranks), job.shape.noise, rng, job.shape.device)
    job.plans.append(plan)
    return plan


def scale_of(shape: Shape, layers: tuple[Layer, ...], share: float = 0.9) -> float:
    """Return nanoseconds per unit of weight, so that a pass through the layers takes a share of the step."""
    weight = sum(work.weight for layer in layers for work in (*layer.forward, *layer.backward))
    return share * shape.step_ns / weight


def run_ahead(plan: Plan, shape: Shape) -> None:
    """Let the host of a program that never waits run ahead of the device by a step or so, where its queue is full."""
    if shape.synchronises:
        return
    kernels = [number for number, op in enumerate(plan.ops) if op.launched_by >= 0]
    depth = max(8, int(plan.rng.uniform(0.3, 1.5) * len(kernels) / shape.steps))
    for freed, number in zip(kernels, kernels[depth:], strict=False):
        # The call that launches a kernel into a full queue returns when another has left it.
        plan.ops[plan.ops[number].launched_by].until = freed


def _trainer(shape: Shape, job: Job) -> Trainer:
    layers = layers_of(shape, layer_count(shape))
    return Trainer(job, new_plan(job, list(range(shape.ranks))), layers, scale_of(shape, layers))


def _buckets(layers: tuple[Layer, ...], count: int) -> list[range]:
    """Return the places of the layers from last to first, in buckets."""
    ends = np.linspace(0, len(layers), min(count, len(layers)) + 1).round().astype(int).tolist()
    return [range(len(layers) - 1 - low, len(layers) - 1 - high, -1) for low, high in pairwise(ends)]


def _data_parallel(job: Job) -> None:
    """Gradients are summed over all ranks, a bucket as soon as its layers are done, during the backward pass."""
    _replicated(job, job.shape.communicates, 0.0)


def _with_experts(job: Job) -> None:
    """Tokens travel to the experts of each layer and back; all other parameters are replicated."""
    _replicated(job, 0.3 * job.shape.communicates, 0.7 * job.shape.communicates)


def _replicated(job: Job, reduces: float, exchanges: float) -> None:
    shape = job.shape
    trainer = _trainer(shape, job)
    plan, layers = trainer.plan, tuple(trainer.layers)
    world = job.groups["WORLD"][0].ranks
    total = job.network.bytes_for(shape, "allreduce", [world], reduces * shape.step_ns)
    parameters = sum(layer.parameters for layer in layers)
    trainer.begin()
    for step in range(shape.steps):
        plan.step = step
        with plan.annotated(f"ProfilerStep#{shape.first_step + step}"):
            trainer.load()
            routed = [_routing(plan, exchanges) for _ in layers]
            with trainer.phase("forward"), plan.annotated("DistributedDataParallel.forward"):
                numbers = [
                    trainer.forward(layer, _travels(trainer, exchanges, forward=True), routed[place])
                    for place, layer in enumerate(layers)
                ]
            reduced = []
            with trainer.phase("backward", "backward"):
                for bucket in _buckets(layers, shape.buckets):
                    for place in bucket:
                        hooks = _travels(trainer, exchanges, forward=False)
                        trainer.backward(layers[place], numbers[place], hooks, routed[place])
                    share = sum(layers[place].parameters for place in bucket) / parameters
                    reduced.append(trainer.collective("allreduce", "WORLD", total * share))
            for number in reduced:
                trainer.needs(number)
            trainer.update()
            trainer.finish()
    run_ahead(plan, shape)


def _routing(plan: Plan, exchanges: float) -> Floats | float:
    """Return how much work each rank's experts get: a little more or less in each step."""
    return np.exp(plan.rng.normal(0.0, 0.03, len(plan.ranks))) if exchanges else 1.0


def _travels(trainer: Trainer, exchanges: float, *, forward: bool) -> Hooks | None:
    """Return the exchanges of tokens around the experts of a layer: after, or in the backward pass before, a place."""
    if not exchanges:
        return None
    job, shape = trainer.job, trainer.shape
    duration = exchanges * shape.step_ns / (4 * len(trainer.layers))
    size = job.network.bytes_for(shape, "all_to_all", [group.ranks for group in job.groups["EP"]], duration)
    first, last = trainer.layers[0].expert, len(trainer.layers[0].forward)

    def travel() -> None:
        trainer.needs(trainer.collective("all_to_all", "EP", size))

    return {first - 1: travel, last - 1: travel}


def _sharded(job: Job) -> None:
    """Each layer's parameters are gathered before they are used, and its gradients scattered when they are known.

    If hosts replicate each other, the shards of gradients are then summed over the hosts.
    """
    shape = job.shape
    trainer = _trainer(shape, job)
    plan, layers = trainer.plan, tuple(trainer.layers)
    kind = "SHARD" if shape.hybrid else "WORLD"
    members = [group.ranks for group in job.groups[kind]]
    duration = shape.communicates * shape.step_ns / ((4 if shape.hybrid else 3) * len(layers))
    shard = job.network.bytes_for(shape, "_allgather_base", members, duration)
    if shape.hybrid:
        replicas = [group.ranks for group in job.groups["REPLICA"]]
        shard = min(shard, job.network.bytes_for(shape, "allreduce", replicas, duration))
    # Newer versions gather and scatter on streams of their own.
    scatters = "21" if shape.dialect == "2.13" else ""
    gathers = partial(trainer.collective, "_allgather_base", kind, shard, wait=False)
    trainer.begin()
    for step in range(shape.steps):
        plan.step = step
        with plan.annotated(f"ProfilerStep#{shape.first_step + step}"):
            trainer.load()
            numbers = _sharded_pass(trainer, gathers)
            done = -1
            with trainer.phase("backward", "backward"):
                ready = gathers()
                for place in reversed(range(len(layers))):
                    ahead = gathers() if place else -1
                    trainer.needs(ready)
                    trainer.backward(layers[place], numbers[place])
                    size = shard * len(members[0])
                    done = trainer.collective("_reduce_scatter_base", kind, size, stream=scatters)
                    if shape.hybrid:
                        plan.wait(STREAMS["REPLICA"], done)
                        done = trainer.collective("allreduce", "REPLICA", shard, wait=False)
                    ready = ahead
            trainer.needs(done)
            trainer.update()
            trainer.finish()
    run_ahead(plan, shape)


def _sharded_pass(trainer: Trainer, gathers: Callable[[], int]) -> list[list[int]]:
    """Compute forward; the next layer's parameters are gathered while one computes."""
    layers, numbers = trainer.layers, []
    with trainer.phase("forward"), trainer.plan.annotated("FullyShardedDataParallel.forward"):
        ready = gathers()
        for place, layer in enumerate(layers):
            ahead = gathers() if place + 1 < len(layers) else -1
            trainer.needs(ready)
            numbers.append(trainer.forward(layer))
            ready = ahead
    return numbers
