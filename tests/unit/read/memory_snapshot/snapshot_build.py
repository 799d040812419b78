"""A training's allocator, simulated: its snapshot, as ``torch.cuda.memory._snapshot`` returns it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

TORCH = "/venv/lib/python3.11/site-packages/torch/"
START_US = 1_790_000_000_000_000
MB = 1 << 20
PARAMETERS, GRADIENT, STATE, ACTIVATION, WORK, BATCH, LEAK = 8 * MB, 4 * MB, 8 * MB, 16 * MB, 2 * MB, MB, 3 * MB


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


MAIN = frame("/home/me/train.py", 30, "main")
MOVED = [frame(f"{TORCH}nn/modules/module.py", 1300, "to"), MAIN]
FORWARD = [frame("/home/me/net.py", 7, "forward"), frame(f"{TORCH}nn/modules/module.py", 1750, "_call_impl"), MAIN]
OPTIMIZER = [frame(f"{TORCH}optim/adam.py", 90, "step"), MAIN]
ZERO = [frame(f"{TORCH}optim/optimizer.py", 900, "zero_grad"), MAIN]
LOADED = [frame(f"{TORCH}utils/data/dataloader.py", 700, "__next__"), MAIN]
LOGGED = [frame("/home/me/train.py", 44, "log"), MAIN]
BACKWARD: list[dict[str, Any]] = []  # on a thread of PyTorch's own


class Allocator:
    """Takes and gives back blocks, each in a segment of its own, which it keeps."""

    def __init__(self, *, times: bool = True) -> None:
        self.trace: list[dict[str, Any]] = []
        self.segments: dict[int, dict[str, Any]] = {}
        self._times = times
        self._free: list[int] = []

    def note(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
        if self._times:
            entry["time_us"] = START_US + 10 * len(self.trace)
        self.trace.append(entry)

    def alloc(self, size: int, frames: list[dict[str, Any]]) -> int:
        fitting = (address for address in self._free if self.segments[address]["total_size"] >= size)
        address = next(fitting, 0)
        if address:
            self._free.remove(address)
        else:
            address = (1 << 40) + (len(self.segments) << 30)
            total = -(-size // (2 * MB)) * 2 * MB
            self.segments[address] = {"total_size": total}
            self.note("segment_alloc", address, total, frames)
        self.segments[address] |= {"requested": size, "frames": frames}
        self.note("alloc", address, size, frames)
        return address

    def free(self, address: int, frames: list[dict[str, Any]]) -> None:
        size = self.segments[address].pop("requested")
        self.note("free_requested", address, size, frames)
        self.note("free_completed", address, size, frames)
        self._free.append(address)

    def snapshot(self) -> dict[str, Any]:
        segments = []
        for address, segment in self.segments.items():
            size, used = segment["total_size"], segment.get("requested")
            block = {"address": address, "size": size, "requested_size": used or 0, "frames": segment["frames"]}
            block["state"] = "inactive" if used is None else "active_allocated"
            segments.append({
                "device": 0, "address": address, "total_size": size, "allocated_size": size if used else 0,
                "active_size": size if used else 0, "requested_size": used or 0, "stream": 0, "segment_type": "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": segment["frames"], "blocks": [block],
            })  # fmt: skip
        return {
            "segments": segments,
            "device_traces": [self.trace, []],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        }


def trained(repetitions: int = 6, *, times: bool = True) -> Allocator:
    """A training that keeps 3 MB of every repetition; its history begins after the model was moved."""
    allocator = Allocator(times=times)
    allocator.alloc(PARAMETERS, MOVED)
    allocator.trace.clear()
    gradient = state = 0
    for _ in range(repetitions):
        batch = allocator.alloc(BATCH, LOADED)
        work = allocator.alloc(WORK, FORWARD)
        activation = allocator.alloc(ACTIVATION, FORWARD)
        allocator.free(work, FORWARD)
        if gradient:
            allocator.free(gradient, ZERO)
        work = allocator.alloc(WORK, BACKWARD)
        gradient = allocator.alloc(GRADIENT, BACKWARD)
        allocator.free(activation, BACKWARD)
        allocator.free(work, BACKWARD)
        state = state or allocator.alloc(STATE, OPTIMIZER)
        work = allocator.alloc(WORK, OPTIMIZER)
        allocator.free(work, OPTIMIZER)
        allocator.alloc(LEAK, LOGGED)
        allocator.free(batch, LOGGED)
    return allocator


def written(path: Path, snapshot: object | None = None, protocol: int = 4) -> Path:
    """Write a snapshot as PyTorch does; by default that of six repetitions."""
    path.write_bytes(pickle.dumps(trained().snapshot() if snapshot is None else snapshot, protocol))
    return path
