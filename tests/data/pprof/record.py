"""Records ``memory.pb.gz``: what three weights, a batch and their programs keep in memory, as JAX tells it.

    python tests/data/pprof/record.py

The paths of installed packages are written as if they lay in ``/opt/python``. The file that stands beside was recorded
with JAX 0.10.2 on a CPU.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import jax

from stepscope.read.common.protobuf import Messages
from stepscope.report.timeline.perfetto.protobuf import block

TARGET = Path(__file__).with_name("memory.pb.gz")
TRAIN = """
import jax
import jax.numpy as jnp

def weights():
    return [jnp.ones((256, 512), jnp.float32) + n for n in range(3)]

def batch():
    return jnp.arange(1000) * 2

kept = [*weights(), batch()]
step = jax.jit(lambda w, x: (w[0] @ w[1].T).sum() + x.sum())
value = step(kept[:3], kept[3]).block_until_ready()
"""


def main() -> None:
    names: dict[str, object] = {}
    exec(compile(TRAIN, "train.py", "exec"), names)
    content = gzip.decompress(jax.profiler.device_memory_profile())
    written = bytearray()
    at = 0
    for row in Messages.whole(content).fields().table.tolist():
        _, number, _, _, start, end = row
        text = content[start:end]
        if number == 6:
            text = re.sub(rb".*/(lib/python3)[.\d]*/", rb"/opt/python/\1/", text)
            text = b"record.py" if text.endswith(b"record.py") else text
        written += block(number, text) if text else content[at:end]
        at = end
    TARGET.write_bytes(gzip.compress(bytes(written), mtime=0))


if __name__ == "__main__":
    main()
