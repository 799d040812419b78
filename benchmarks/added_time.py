"""Time that recording adds to a step: stepscope against a framework's own profiler, in one process.

Each round measures blocks of steps without a recorder ("bare"), under the peer and under stepscope, in random order. A
block's figure is its median step; a round's figure is the difference from the bare block of the same round. It prints
medians over rounds, and the ratio of the two added times. Start, stop and writing the file are measured separately.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import stepscope

STEPS = 40
#: Steps that are not measured: at the beginning of each block, and before the first block.
_FIRST, _WARM = 3, 30

Step: TypeAlias = Callable[[], object]
Switches: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """The two sides of the comparison.

    Attributes:
        title: Framework and version.
        modes: Name → makes a training step.
        switches: Name → arguments of ``stepscope.profile``.
        theirs: The framework's own profiler for such switches and a directory; gives what has ``step()``, or None.
    """

    title: str
    modes: Mapping[str, Callable[[], Step]]
    switches: Mapping[str, Switches]
    theirs: Callable[[Switches, str], AbstractContextManager[Any]]

    def recorders(self, switches: Switches, output: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """Return the recorders under which blocks are measured, by name."""
        return {
            "bare": nullcontext,
            "theirs": lambda: self.theirs(switches, output),
            "ours": lambda: stepscope.profile(activities=["cpu"], output=output, analyse="later", **switches),
        }


def block(recorder: Callable[[], AbstractContextManager[Any]], step: Step) -> tuple[float, float]:
    """Return the median step of a block in µs, and the time of start and stop in ms."""
    times = []
    begin = time.perf_counter_ns()
    with recorder() as profiler:
        outside = time.perf_counter_ns() - begin
        for number in range(STEPS + _FIRST):
            begin = time.perf_counter_ns()
            step()
            if profiler is not None:
                profiler.step()
            if number >= _FIRST:
                times.append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
    return statistics.median(times) / 1e3, (outside + time.perf_counter_ns() - begin) / 1e6


def compare(peer: Peer, step: Step, switches: Switches, rounds: int) -> dict[str, tuple[float, float]]:
    """Return medians per recorder: the time it adds to a step in µs (bare: the step), its start and stop in ms."""
    added: dict[str, list[tuple[float, float]]] = {"bare": [], "theirs": [], "ours": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as output:
            recorders = peer.recorders(switches, output)
            figures = {name: block(recorders[name], step) for name in random.sample(sorted(recorders), k=3)}
        bare = figures["bare"][0]
        for name, (median, outside) in figures.items():
            added[name].append((median - (bare if name != "bare" else 0), outside))
    return {
        name: (statistics.median(median for median, _ in rows), statistics.median(outside for _, outside in rows))
        for name, rows in added.items()
    }


def main(peer: Peer, description: str | None) -> None:
    """Print one row per mode and set of switches."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default=",".join(peer.modes))
    parser.add_argument("--switches", default=",".join(peer.switches))
    parser.add_argument("--rounds", type=int, default=41)
    arguments = parser.parse_args()
    print(f"{peer.title}, {arguments.rounds} rounds of {STEPS} steps; µs per step, ms for start and stop")
    print("mode       switches      bare  theirs add  ours add  ratio  their stop  our stop")
    for mode in arguments.modes.split(","):
        step = peer.modes[mode]()
        for _ in range(_WARM):
            step()
        for name in arguments.switches.split(","):
            found = compare(peer, step, peer.switches[name], arguments.rounds)
            (bare, _), (their, their_stop), (own, own_stop) = found["bare"], found["theirs"], found["ours"]
            row = f"{mode:<10} {name:<9} {bare:8.0f} {their:11.0f} {own:9.0f} {own / their:6.2f}"
            print(f"{row} {their_stop:11.0f} {own_stop:9.0f}", flush=True)
