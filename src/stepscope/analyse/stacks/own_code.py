"""Which frames of a stack are the program's own: not Python's, not an installed package's, not generated."""

from __future__ import annotations

import json
import re
import sys

import polars as pl

from stepscope.trace.schema import LIBRARIES
from stepscope.trace.tables import Tables, facts

#: Where packages are installed.
_INSTALLED = r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d[^/\\]*)[/\\]"
#: Code without a file: `<string>`, `<frozen runpy>`, `<eval_with_key>.12`; but what a user types is their own.
_GENERATED, _TYPED = r"^<", r"^<(?:stdin|ipython-input|console)"
#: What paths begin with that a source shortened (Kineto leaves out the directory of `sys.path`): frameworks and what
#: trains with them, and Python's own modules.
_PACKAGES = (
    "torch", "torchvision", "torchaudio", "functorch", "triton", "apex", "deepspeed", "accelerate", "transformers",
    "lightning", "lightning_fabric", "pytorch_lightning", "jax", "jaxlib", "flax", "optax", "paddle", "mindspore",
    "numpy", "stepscope",
)  # fmt: skip
_SHORTENED = rf"^(?:{'|'.join(map(re.escape, (*_PACKAGES, *sorted(sys.stdlib_module_names))))})(?:[/\\]|\.py$)"


def own_code(tables: Tables) -> pl.Expr:
    """Return whether the column ``file`` of a frame names the program's own code; null without a file."""
    file = pl.col("file")
    foreign = file.str.contains(_INSTALLED) | file.str.contains(_SHORTENED)
    foreign |= file.str.contains(_GENERATED) & ~file.str.contains(_TYPED)
    if roots := _roots(tables):
        foreign |= file.str.contains(rf"^(?:{'|'.join(map(re.escape, roots))})[/\\]")
    return ~foreign


def _roots(tables: Tables) -> list[str]:
    """Return the directories of libraries that the recording names."""
    said = facts(tables).get(LIBRARIES)
    try:
        roots = json.loads(said or "[]")
    except ValueError:
        return []
    return [root for root in roots if isinstance(root, str) and root] if isinstance(roots, list) else []
