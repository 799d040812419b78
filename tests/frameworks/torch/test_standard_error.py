"""A recording writes nothing to the program's standard error, and keeps nothing off it that the program writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.torch.programs import TRAINING, environment, forked_run, manifest, runs

#: torch's line about a block that was allocated before the recording; see torch's c10/core/CPUAllocator.cpp.
LINE = "Memory block of unknown size was allocated before the profiling started"

#: A training that frees old blocks in every step, while it, or a library of its own, writes to ``std::cerr``.
FREEING = (
    TRAINING
    + """
import ctypes
cxx = ctypes.CDLL("libstdc++.so.6")
cerr = ctypes.addressof(ctypes.c_char.in_dll(cxx, "_ZSt4cerr"))
write = cxx["_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc"]
write.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
put = cxx["_ZNSo3putEc"]
put.argtypes = [ctypes.c_void_p, ctypes.c_char]

old = [torch.ones(100) for number in range(4000)]
for number in range(20):
    step()
    del old[-200:]
    write(cerr, f"step {number}\\n".encode())
    write(cerr, b"Memory block of unknown size was allocated before, says the program\\n")
    put(cerr, b"!")
"""
)


@pytest.mark.parametrize("collector", ["native", "kineto", "kineto, for nothing is built"])
def test_torchs_warning_of_freed_blocks_is_left_out_and_nothing_else(tmp_path: Path, collector: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(FREEING)
    collector, _, unbuilt = collector.partition(", ")
    asked = ["--collector", "auto" if unbuilt else collector, "--profile-memory"]
    changed = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": "no-compiler", "PATH": ""} if unbuilt else {}
    done = forked_run(tmp_path / "runs", *asked, script, env=environment(**changed))
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    described = manifest(run)["collectors"]["torch"]
    assert described["recorder"] == collector
    assert LINE not in done.stderr
    said = "".join(
        f"step {number}\nMemory block of unknown size was allocated before, says the program\n!" for number in range(20)
    )
    assert said in done.stderr
