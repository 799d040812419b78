"""Training in three dimensions: stages of a pipeline, parts of each layer, and replicas."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import pairwise

import numpy as np

from tests.simulator.groups import rank_at
from tests.simulator.models import Layer
from tests.simulator.plans import Exchange, Meeting, Plan
from tests.simulator.schedules import layer_count, new_plan, run_ahead, scale_of
from tests.simulator.training import STREAMS, Hooks, Job, Trainer, layers_of

#: Streams of messages to the stage before and to the stage after.
_BEFORE, _AFTER = "40", "44"
#: A layer's work after which ranks of tensor parallelism sum their parts: forward, and before which: backward.
_FORWARD_SUMS, _BACKWARD_SUMS = (3, 8), (0, 5)


def three_dimensions(job: Job) -> None:
    """Add the plans of all stages to a job."""
    shape = job.shape
    count = layer_count(shape, shape.microbatches)
    layers = layers_of(shape, count * shape.pipeline)
    for stage in range(shape.pipeline):
        ranks = [rank_at(shape, tensor, data, stage) for data in range(shape.data) for tensor in range(shape.tensor)]
        mine = layers[count * stage : count * (stage + 1)]
        plan = new_plan(job, ranks)
        # No stage has quite the same work; the last has a head as well.
        heavier = float(plan.rng.uniform(0.98, 1.02)) + 0.02 * (stage == shape.pipeline - 1)
        share = 0.9 * heavier / shape.microbatches
        _Stage(job, Trainer(job, plan, mine, scale_of(shape, mine, share)), stage).steps()


class _Stage:
    """The program of one stage: one forward, one backward (1F1B), as Megatron orders them.

    Args:
        job: The job.
        trainer: What computes.
        stage: Number of the stage.
    """

    def __init__(self, job: Job, trainer: Trainer, stage: int) -> None:
        self.job, self.shape, self.trainer, self.stage = job, job.shape, trainer, stage
        self.plan: Plan = trainer.plan
        self.last = stage == self.shape.pipeline - 1
        shape, network = self.shape, job.network
        pairs = [pair for group in job.groups["PP"] for pair in pairwise(group.ranks)]
        microbatch = shape.step_ns / shape.microbatches
        self.message = network.bytes_for(shape, "send", pairs, 0.1 * shape.communicates * microbatch)
        layers = len(trainer.layers)
        tensor, data = ([group.ranks for group in job.groups[kind]] for kind in ("TP", "DP"))
        if shape.tensor > 1:
            duration = 0.4 * shape.communicates * microbatch / (4 * layers)
            self.part = network.bytes_for(shape, "allreduce", tensor, duration)
        if shape.data > 1:
            self.gradients = network.bytes_for(shape, "allreduce", data, 0.3 * shape.communicates * shape.step_ns)

    def steps(self) -> None:
        """Add all steps."""
        self.trainer.begin()
        for step in range(self.shape.steps):
            self.plan.step = step
            with self.plan.annotated(f"ProfilerStep#{self.shape.first_step + step}"):
                self.trainer.load()
                self._schedule()
                self._reduce()
                self.trainer.update()
                self.trainer.finish()
        run_ahead(self.plan, self.shape)

    def _schedule(self) -> None:
        """Fill the pipeline, alternate forward and backward, and empty it."""
        count = self.shape.microbatches
        filling = min(self.shape.pipeline - self.stage - 1, count)
        waiting: deque[list[list[int]]] = deque()
        for i in range(filling):
            self._get("forward", i)
            waiting.append(self._forward())
            self._give("forward", i)
        if filling < count:
            self._get("forward", filling)
        for i in range(count - filling):
            waiting.append(self._forward())
            self._both(("forward", filling + i), ("backward", i))
            self._backward(waiting.popleft())
            if i + 1 < count - filling:
                self._both(("backward", i), ("forward", filling + i + 1))
            else:
                self._give("backward", i)
        for i in range(count - filling, count):
            self._get("backward", i)
            self._backward(waiting.popleft())
            self._give("backward", i)

    def _both(self, gives: tuple[str, int], gets: tuple[str, int]) -> None:
        """Send to and receive from one neighbour; of two neighbours, the one with an even number sends first."""
        first, second = (*gives, True), (*gets, False)
        self._messages([first, second] if self.stage % 2 == 0 else [second, first])

    def _forward(self) -> list[list[int]]:
        trainer = self.trainer
        with trainer.phase("forward"):
            return [trainer.forward(layer, self._sums(_FORWARD_SUMS, layer)) for layer in trainer.layers]

    def _backward(self, numbers: list[list[int]]) -> None:
        trainer = self.trainer
        with trainer.phase("backward", "backward"):
            for layer, said in zip(reversed(trainer.layers), reversed(numbers), strict=True):
                trainer.backward(layer, said, self._sums(_BACKWARD_SUMS, layer))

    def _sums(self, places: tuple[int, ...], layer: Layer) -> Hooks | None:
        if self.shape.tensor < 2:
            return None

        def add() -> None:
            self.trainer.needs(self.trainer.collective("allreduce", "TP", self.part))

        return {place: add for place in places if place < len(layer.forward)}

    def _give(self, direction: str, number: int) -> None:
        self._messages([(direction, number, True)])

    def _get(self, direction: str, number: int) -> None:
        self._messages([(direction, number, False)])

    def _messages(self, messages: list[tuple[str, int, bool]]) -> None:
        """Send or receive the activations of microbatches, or their gradients, to or from one neighbour."""
        direction, _, sends = messages[0]
        away = 1 if sends == (direction == "forward") else -1
        other = self.stage + away
        if not 0 <= other < self.shape.pipeline:
            return
        meetings = []
        for direction, number, sends in messages:
            source, target = (self.stage, other) if sends else (other, self.stage)
            key = (self.plan.step, direction, number, source)
            exchange = self.job.exchange(key, partial(self._pairs, source, target))
            meeting = Meeting(exchange, np.arange(len(self.plan.ranks)))
            meetings.append(("send" if sends else "recv", meeting))
        if self.shape.batched:
            done = self.trainer.exchange_batch(meetings, STREAMS["PP"])
            if any(operation == "recv" for operation, _ in meetings):
                self.trainer.needs(done)
            return
        for operation, meeting in meetings:
            done = self.trainer.communicate(
                operation, (meeting,), _AFTER if away > 0 else _BEFORE, wait=operation == "send"
            )
            if operation == "recv":
                self.trainer.needs(done)

    def _pairs(self, source: int, target: int) -> Exchange:
        shape = self.shape
        places = [(tensor, data) for data in range(shape.data) for tensor in range(shape.tensor)]
        members = [tuple(rank_at(shape, *place, stage) for stage in (source, target)) for place in places]
        by_ranks = {group.ranks: group for group in self.job.groups["PP"]}
        groups = [by_ranks[tuple(rank_at(shape, *place, stage) for stage in range(shape.pipeline))] for place in places]
        transit = self.job.network.transit(shape, "send", members, self.message)
        transit *= np.exp(self.plan.rng.normal(0.0, 0.03, len(members)))
        return Exchange("send", groups, members, int(self.message), transit, self.plan.place("send", "communication"))

    def _reduce(self) -> None:
        """Sum the gradients over the replicas, and the norm over everyone."""
        if self.shape.data > 1:
            with self.trainer.phase("backward"):
                for _ in range(2):
                    self.trainer.needs(self.trainer.collective("allreduce", "DP", self.gradients / 2))
        with self.trainer.phase("optimizer"):
            key = (self.plan.step, "norm")
            self.trainer.needs(self.trainer.collective("allreduce", "WORLD", 8.0, key=key))
