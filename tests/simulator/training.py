"""The program of a rank: steps with data, forward, backward and optimizer, and its collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tests.simulator.groups import Network, groups_of
from tests.simulator.models import BACKWARD, OPTIMIZERS, Layer, Work, convolutions, perceptron, transformer
from tests.simulator.plans import Exchange, Floats, Group, Inner, Integers, Meeting, Op, Plan
from tests.simulator.shapes import Shape

COMPUTE = "7"
#: Arguments of NCCL's kernels.
ARGUMENTS = "ncclDevKernelArgsStorage<4096ul>"
#: What to do at places of a layer.
Hooks: TypeAlias = dict[int, Callable[[], None]]
#: Bytes of an element of a gradient or activation.
ELEMENT = 2

#: How PyTorch calls a collective: on the host, as annotation, as kernel.
CALLS = {
    "allreduce": ("c10d::allreduce_", "all_reduce", "AllReduce_Sum_bf16_RING_LL"),
    "_allgather_base": ("c10d::_allgather_base_", "_all_gather_base", "AllGather_RING_LL"),
    "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", "_reduce_scatter_base", "ReduceScatter_Sum_bf16_RING_LL"),
    "all_to_all": ("c10d::alltoall_base_", "all_to_all", "SendRecv"),
    "send": ("c10d::send", "send", "SendRecv"),
    "recv": ("c10d::recv_", "recv", "SendRecv"),
}


@dataclass
class Job:
    """All ranks of a job.

    Attributes:
        shape: What kind of job it is.
        network: What connects its ranks.
        groups: Its process groups, by kind.
        plans: What its ranks do; those of one pipeline stage share a plan.
        exchanges: Where they meet.
    """

    shape: Shape
    network: Network
    groups: dict[str, list[Group]]
    plans: list[Plan] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    _shared: dict[object, int] = field(default_factory=dict)

    def exchange(self, key: object, make: Callable[[], Exchange]) -> int:
        """Return the number of the exchange that plans share under a key."""
        if key not in self._shared:
            self._shared[key] = len(self.exchanges)
            self.exchanges.append(make())
        number = self._shared[key]
        self.exchanges[number].parts += 1
        return number


def layers_of(shape: Shape, count: int) -> tuple[Layer, ...]:
    """Return the model of a job, with this many layers."""
    rng = np.random.default_rng([shape.seed, 2])
    if shape.model == "convolutions":
        return convolutions(count, rng)
    if shape.model == "perceptron":
        return perceptron(count, rng)
    return transformer(count, rng, experts=shape.kind == "moe")


class Trainer:
    """Writes the program of the ranks of one plan.

    Args:
        job: The job; the plan is one of its plans.
        plan: The plan.
        layers: What these ranks compute.
        scale: Nanoseconds per unit of weight.
    """

    def __init__(self, job: Job, plan: Plan, layers: Sequence[Layer], scale: float) -> None:
        self.job, self.plan, self.layers, self.scale = job, plan, layers, scale
        self.shape = job.shape
        #: What a call of the host takes: less than kernels, on a rank that its host does not hold up.
        works = sum(len(layer.forward) + len(layer.backward) for layer in layers)
        self.call_ns = min(
            30_000.0, 0.4 * scale * sum(work.weight for layer in layers for work in layer.forward) / works
        )
        self.gloo = 0
        self.sequence = 0
        self._index = {int(rank): i for i, rank in enumerate(plan.ranks)}

    def work(self, work: Work, factor: Floats | float = 1.0, *, backward: bool = False, said: str = "") -> int:
        """Add an operator and its kernel; on a host without device, the operator computes. Return the last."""
        plan, nominal = self.plan, work.weight * self.scale * factor
        name = f"autograd::engine::evaluate_function: {work.operator}" if backward else work.operator
        inner = [Inner(work.operator, "cpu_op", 0.04, 0.98)] if backward else []
        if work.inner:
            inner.append(Inner(work.inner, "cpu_op", 0.15, 0.95))
        duration = plan.varied(1.0, plan.noise.kernels) * plan.speed * nominal
        if plan.phase in ("forward", "backward"):
            duration *= plan.batch
        if not self.shape.device:
            number = plan.call(name, 0.0, tuple(inner), said)
            plan.ops[number].duration = duration
            plan.ops[number].place = plan.place(work.inner or work.operator, work.sort)
            return number
        inner.append(Inner("cudaLaunchKernel", "cuda_runtime", 0.5, 0.85))
        plan.call(name, self.call_ns, tuple(inner), said)
        place = plan.place(work.inner or work.operator, work.sort)
        return plan.on_stream(Op(work.kernel, "kernel", COMPUTE, duration, [], place), COMPUTE)

    def collective(
        self, operation: str, kind: str, size: float, *, stream: str = "", wait: bool = True, key: object = None
    ) -> int:
        """Add a collective of all ranks of the plan with their groups of a kind; return its operation, or −1 if alone.

        Args:
            operation: What it does.
            kind: Kind of the groups.
            size: Bytes that each rank gives.
            stream: Where it runs; of the group's own without one.
            wait: Whether it waits for what the compute stream does now.
            key: What plans that meet in it share; None if only this plan takes part.
        """
        groups = [group for group in self.job.groups[kind] if self._index.keys() & set(group.ranks)]
        if len(groups[0].ranks) < 2:
            return -1
        members = [group.ranks for group in groups]
        place = self.plan.place(operation, "communication")

        def make() -> Exchange:
            transit = self.job.network.transit(self.shape, operation, members, size)
            transit *= np.exp(self.plan.rng.normal(0.0, 0.03, len(members)))
            return Exchange(operation, groups, members, int(size), transit, place)

        number = self.job.exchange(key or object(), make)
        meeting = Meeting(number, self._groups_of_ranks(members))
        return self.communicate(operation, (meeting,), stream or STREAMS[kind], wait=wait)

    def _groups_of_ranks(self, members: Sequence[tuple[int, ...]]) -> Integers:
        group = np.zeros(len(self._index), np.int64)
        for place, ranks in enumerate(members):
            for rank in ranks:
                if rank in self._index:
                    group[self._index[rank]] = place
        return group

    def communicate(self, operation: str, meetings: tuple[Meeting, ...], stream: str, *, wait: bool = True) -> int:
        """Add one operation that meets other ranks, and its call on the host."""
        plan = self.plan
        call, annotation, kernel = CALLS[operation]
        place = plan.place(operation, "communication")
        jitter = np.abs(plan.rng.normal(0.0, plan.noise.jitter_ns, len(plan.ranks)))
        if not self.shape.device:
            plan.call(call, 20_000.0)
            self.gloo += 1
            lane = f"gloo{self.gloo % 2}"
            op = Op(f"gloo:{annotation}", "user_annotation", lane, jitter, [], place, meetings=meetings)
            return plan.on_stream(op, lane)
        inner = (
            Inner("record_param_comms", "cpu_op", 0.2, 0.95, "0"),
            Inner(f"nccl:{annotation}", "user_annotation", 0.3, 0.9),
            Inner("cudaLaunchKernelExC", "cuda_runtime", 0.5, 0.8),
        )
        plan.call(call, 2.0 * self.call_ns, inner)
        if wait and plan.last_on(COMPUTE) >= 0:
            plan.wait(stream, plan.last_on(COMPUTE))
        name = f"ncclDevKernel_{kernel}({ARGUMENTS})"
        return plan.on_stream(Op(name, "kernel", stream, jitter, [], place, meetings=meetings), stream)

    def exchange_batch(self, messages: Sequence[tuple[str, Meeting]], stream: str) -> int:
        """Add messages that one kernel sends and receives, as ``batch_isend_irecv`` launches it."""
        plan, inner = self.plan, []
        for place, (operation, _) in enumerate(messages):
            low = 0.05 + 0.3 * place
            inner.append(Inner(CALLS[operation][0], "cpu_op", low, low + 0.28))
            inner.append(Inner("record_param_comms", "cpu_op", low + 0.05, low + 0.25, str(place)))
        inner.append(Inner("nccl:coalesced", "user_annotation", 0.7, 0.98))
        inner.append(Inner("cudaLaunchKernelExC", "cuda_runtime", 0.75, 0.95))
        plan.ops[plan.call("", 4.0 * self.call_ns, tuple(inner))].category = ""
        if plan.last_on(COMPUTE) >= 0 and any(operation == "send" for operation, _ in messages):
            plan.wait(stream, plan.last_on(COMPUTE))
        jitter = np.abs(plan.rng.normal(0.0, plan.noise.jitter_ns, len(plan.ranks)))
        meetings = tuple(meeting for _, meeting in messages)
        name, place_of = f"ncclDevKernel_SendRecv({ARGUMENTS})", plan.place("coalesced", "communication")
        op = Op(name, "kernel", stream, jitter, [], place_of, meetings=meetings, batched=True)
        return plan.on_stream(op, stream)

    def needs(self, number: int) -> None:
        """Let what comes next wait for a collective: on the compute stream, or on the host without a device."""
        if number < 0:
            return
        if self.shape.device:
            self.plan.wait(COMPUTE, number)
        else:
            self.plan.ops[self.plan.host("", 3_000.0, category="", sort="wait")].until = number

    @contextmanager
    def phase(self, name: str, thread: str = "main") -> Iterator[None]:
        """Say in which phase, and on which thread, what follows happens."""
        before = self.plan.phase, self.plan.thread
        self.plan.phase, self.plan.thread = name, thread if self.shape.device else "main"
        yield
        self.plan.phase, self.plan.thread = before

    def load(self) -> None:
        """Wait for the next batch and copy it to the device."""
        plan = self.plan
        if self.shape.kind != "3d":
            # The ranks of a pipeline share their batch.
            plan.batch = plan.varied(1.0, plan.noise.batches)
        with self.phase("data"):
            loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            number = plan.host(loader, 1.0, category="user_annotation", sort="loader")
            plan.ops[number].duration = plan.varied(self.shape.loader_ns, plan.noise.loaders) * plan.host_speed
            if not self.shape.device:
                return
            inner = (
                Inner("aten::_to_copy", "cpu_op", 0.05, 0.98),
                Inner("aten::copy_", "cpu_op", 0.3, 0.95),
                Inner("cudaMemcpyAsync", "cuda_runtime", 0.5, 0.9),
            )
            plan.call("aten::to", 1.5 * self.call_ns, inner)
            duration = plan.varied(0.005 * self.shape.step_ns, 0.05)
            copy = Op(
                "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", COMPUTE, duration, [], plan.place("aten::copy_", "copy")
            )
            plan.on_stream(copy, COMPUTE)

    def update(self, share: float = 0.06) -> None:
        """Step the optimizer."""
        plan, work = self.plan, OPTIMIZERS[self.shape.optimizer]
        with self.phase("optimizer"), plan.annotated(f"Optimizer.step#{self.shape.optimizer}.step"):
            plan.module = ""
            for _ in range(2):
                self.work(work, share * self.shape.step_ns / self.scale / 2)
        with self.phase("optimizer"), plan.annotated(f"Optimizer.zero_grad#{self.shape.optimizer}.zero_grad"):
            plan.host("aten::zero_", self.call_ns)

    def finish(self) -> None:
        """End the step, waiting for the device if the program reads the loss."""
        plan = self.plan
        with self.phase("other"):
            if self.shape.device and self.shape.synchronises:
                inner = (
                    Inner("aten::_local_scalar_dense", "cpu_op", 0.05, 0.99),
                    Inner("cudaMemcpyAsync", "cuda_runtime", 0.1, 0.2),
                )
                plan.call("aten::item", self.call_ns, inner)
                duration = plan.varied(1_500.0, 0.1)
                copy = Op(
                    "Memcpy DtoH (Device -> Pinned)",
                    "gpu_memcpy",
                    COMPUTE,
                    duration,
                    [],
                    plan.place("aten::item", "copy"),
                )
                copied = plan.on_stream(copy, COMPUTE)
                plan.host("cudaStreamSynchronize", 5_000.0, category="cuda_runtime", until=copied)
            plan.host("", 30_000.0, category="", sort="python")

    def forward(self, layer: Layer, hooks: Hooks | None = None, experts: Floats | float = 1.0) -> list[int]:
        """Compute a layer forward, and return the sequence number of each of its operators.

        Args:
            layer: The layer.
            hooks: What to do after a place of the layer.
            experts: Factor of the work of experts, which get more or fewer tokens than others.
        """
        self.plan.module = layer.module
        numbers = []
        self.python()
        with self.plan.annotated(_class_of(layer.module), "python_function") if self.shape.modules else nullcontext():
            for place, work in enumerate(layer.forward):
                self.sequence += 1
                numbers.append(self.sequence)
                factor = experts if layer.expert >= 0 and place >= layer.expert else 1.0
                self.work(work, factor, said=f'"Sequence number": {self.sequence}, "Fwd thread id": 0, ')
                if hooks and place in hooks:
                    hooks[place]()
        return numbers

    def python(self) -> None:
        """Spend time of the host between operators; now and then, and on no rank more than on others, a longer one."""
        plan = self.plan
        number = plan.host("", 0.1 * self.call_ns, category="", sort="python")
        longer = plan.rng.exponential(0.01 * self.shape.step_ns, len(plan.ranks))
        plan.ops[number].duration += np.where(plan.rng.random(len(plan.ranks)) < 0.002, longer, 0.0)

    def begin(self) -> None:
        """Let ranks begin a little apart."""
        number = self.plan.host("", 1_000.0, category="", sort="begin")
        self.plan.ops[number].duration += self.plan.rng.exponential(0.004 * self.shape.step_ns, len(self.plan.ranks))

    def backward(
        self, layer: Layer, numbers: list[int], hooks: Hooks | None = None, experts: Floats | float = 1.0
    ) -> None:
        """Compute a layer backward, given the numbers of its forward pass; hooks run before a place's work."""
        self.plan.module = layer.module
        places = [place for place, work in enumerate(layer.forward) for _ in range(BACKWARD.get(work.sort, 1))]
        for place, work in zip(reversed(places), layer.backward, strict=True):
            if hooks and (hook := hooks.pop(place, None)):
                hook()
            said = f'"Sequence number": {numbers[place]}, "Fwd thread id": 1, '
            expert = layer.expert >= 0 and place >= layer.expert
            self.work(work, experts if expert else 1.0, backward=True, said=said)


def _class_of(module: str) -> str:
    """Return what PyTorch calls a module: its class, and its number among those of that class."""
    name, _, number = module.rpartition(".")
    return f"nn.Module: {name.rpartition('.')[2].title()}Block_{number}"


#: Stream of the collectives of each kind of group.
STREAMS = {"WORLD": "20", "DP": "24", "TP": "28", "PP": "32", "EP": "36", "SHARD": "48", "REPLICA": "52"}


def new_job(shape: Shape) -> Job:
    """Return a job without plans."""
    rng = np.random.default_rng([shape.seed, 3])
    return Job(shape, Network.random(shape, rng), groups_of(shape))
