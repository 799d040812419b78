"""Records profile files of ``fluid.profiler`` and, beside each, the report that it prints: the original.

For paddlepaddle 1.8.5 (Python 3.7, protobuf before 3.21)::

    python record_fluid.py DIRECTORY
    GLOG_v=5 python record_fluid.py DIRECTORY

With ``GLOG_v=5`` the original prints its memory report too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.profiler as profiler

OUT = Path(sys.argv[1])
data = fluid.layers.data(name="data", shape=[3, 28, 28], dtype="float32")
one = fluid.layers.conv2d(data, 20, 3, stride=[1, 1], padding=[1, 1])
two = fluid.layers.conv2d(one, 8, 3, stride=[1, 1], padding=[1, 1], act="relu")
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
batch = np.random.random([2, 3, 28, 28]).astype("float32")


def run(times: int) -> None:
    for _ in range(times):
        exe.run(fluid.default_main_program(), feed={"data": batch})


def record(name: str, how: tuple, body: Callable[[], None]) -> None:
    state, key, option = how
    profiler.start_profiler(state, option)
    body()
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 1)
        profiler.stop_profiler(key, str(OUT / (name + ".pb")))
        os.dup2(kept, 1)
        captured.seek(0)
        (OUT / (name + ".txt")).write_bytes(captured.read())


def threads() -> None:
    workers = [threading.Thread(target=run, args=(count,)) for count in (2, 3)]
    for worker in workers:
        worker.start()
        worker.join()
    run(1)


run(3)
if os.environ.get("GLOG_v") == "5":  # noqa: SIM112 - the name that glog knows
    record("memory", ("CPU", "total", "Default"), lambda: run(4))
    sys.exit()
for key in (None, "calls", "total", "max", "min", "ave"):
    record("all_%s" % (key or "default"), ("All", key, "Default"), lambda: run(4))
record("cpu_opdetail", ("CPU", "total", "OpDetail"), lambda: run(4))
record("all_allopdetail", ("All", "total", "AllOpDetail"), lambda: run(4))
record("cpu_allopdetail", ("CPU", "ave", "AllOpDetail"), lambda: run(4))
record("gpu_opdetail", ("GPU", None, "OpDetail"), lambda: run(2))
record("gpu_total", ("GPU", "total", "Default"), lambda: run(2))
record("empty", ("All", "total", "Default"), lambda: None)
record("threads_total", ("CPU", "total", "Default"), threads)
record("threads_opdetail", ("All", None, "OpDetail"), threads)
