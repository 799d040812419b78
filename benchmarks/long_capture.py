"""Memory of a process during a long native recording: ``python benchmarks/long_capture.py [--minutes 10]``.

A network of small operators trains with pauses, so that it does not occupy the machine. Resident memory is read before
the recording, ten times during it, and after it; the losses and the size of the file come from the manifest.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch

import stepscope

_PAUSE = 0.004


def resident() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def record(minutes: float, output: Path) -> None:
    """Train under the recorder and print the memory."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[layer for _ in range(20) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())])
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randn(16, 32)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(50):
        step()
    used, steps = [resident()], 0
    profile = stepscope.profile(
        collector="native", output=output, analyse="later", record_shapes=True, profile_memory=True
    )
    profile.start()
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < minutes * 60:
        step()
        profile.step()
        steps += 1
        time.sleep(_PAUSE)
        if passed > len(used) * minutes * 6:
            used.append(resident())
    used.append(resident())
    profile.stop()
    profile.recorded[0].wait(60)
    state = profile.recorded[0].manifest["collectors"]["torch"]
    print(f"{steps} steps in {minutes:g} minutes, {state['bytes'] / 1e6:.0f} MB, dropped: {state.get('dropped', 0)}")
    print("MB resident:", ", ".join(f"{each:.1f}" for each in (*used, resident())))


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    with tempfile.TemporaryDirectory() as output:
        record(parser.parse_args().minutes, Path(output))


if __name__ == "__main__":
    main()
