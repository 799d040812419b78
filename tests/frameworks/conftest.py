"""Each framework has an environment of its own: what is not installed in this one is not collected in it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [name for name in ("torch", "mindspore", "paddle", "jax") if find_spec(name) is None]
