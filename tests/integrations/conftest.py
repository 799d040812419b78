"""The trainers on PyTorch have an environment of their own: where none is installed, their tests are not collected.

In theirs, a trainer that is missing is an error of its test module. Readers of files for monitoring are there, too.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

# Keras has to be told before it is imported.
os.environ.setdefault("KERAS_BACKEND", "torch")

TRAINERS = ("transformers", "lightning", "accelerate", "keras")
if not any(map(find_spec, TRAINERS)):
    others = ("jax_loader", "logged_events", "monitoring", "real_trainings", "two_ranks")
    collect_ignore = [f"test_{name}.py" for name in (*TRAINERS, *others)]
