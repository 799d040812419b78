"""Tries a built recorder: ``python -m stepscope.collect.torch.native_trial library.so``.

In a separate process, because a library that does not match the installed torch may crash it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path

from stepscope.collect.torch.native_calls import PythonWatch
from stepscope.native.recorder import NativeRecording, Noted, RecorderLibrary
from stepscope.trace.blocks import FrameWriter, read_frames
from stepscope.trace.losses import LossLedger
from stepscope.trace.recorder_layout import MAGIC, WORDS, WORDS_HEAD, Tag


def record(library: Path, path: Path) -> Counter[int]:
    """Record a small training with everything on, and count the words by their tags."""
    torch = import_module("torch")
    loaded = RecorderLibrary(library)
    FrameWriter(path, MAGIC).close()
    recording = NativeRecording(loaded, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))
    weight = torch.ones(3, 4, requires_grad=True)
    recording.begin(inputs=Noted.ALL, memory=True)
    calls = PythonWatch(loaded, functions=True, modules=True)
    calls.start(recording)
    torch.nn.Identity()(torch.cat([weight, weight])).mul(2.0).sum().backward()
    calls.stop()
    recording.end()
    recording.settle(10.0)
    recording.close()
    ledger = LossLedger(path.name)
    words = b"".join(block[WORDS_HEAD.size :] for block in read_frames(path, ledger, MAGIC) if block.startswith(WORDS))
    if ledger.rows():
        message = f"the trial's file is damaged: {ledger.rows()}"
        raise RuntimeError(message)
    return Counter(byte >> 4 for byte in words[7::8])


def main() -> None:
    """Raise if the trial did not record exactly what ran."""
    with tempfile.TemporaryDirectory() as directory:
        found = record(Path(sys.argv[1]), Path(directory) / "trial.ssr")
    needed = (Tag.BEGIN, Tag.END, Tag.INPUTS, Tag.FORWARD, Tag.MEMORY)
    if not all(found[tag] for tag in needed) or found[Tag.BEGIN] < found[Tag.END]:
        message = f"the trial recorded {dict(found)}"
        raise RuntimeError(message)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)
