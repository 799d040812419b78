"""The layer of a model that an instruction belongs to, out of the scope that JAX gives it."""

from __future__ import annotations

import re

#: Calls of JAX, whose names are those of functions; and transformations, around the name of a scope.
_CALL = re.compile(r"(?:jit|pjit|xla_call|xla_pmap|shard_map|core_call|custom_jvp|custom_vjp)\(.*\)")
_TRANSFORMED = re.compile(r"(?:jvp|transpose|vmap|pmap|remat|checkpoint|rematted_computation|linearize)\((.*)\)")
#: What JAX's control flow puts between scopes.
_INSIDE = re.compile(
    r"while|body|cond|scan|closed_call|branch_\d+_fun|checkpoint|remat\d?|rematted_computation|shard_map|pjit"
    r"|custom_[jv][jv]p_call\w*|core_call|xla_pmap"
)


def module(scope: str) -> str | None:
    """Return the layers of a scope, outermost first; None where it has none.

    ``jit(step)/transpose(jvp(loss))/layer2/dot_general`` is ``loss/layer2``: calls are left out, transformations taken
    off, and the last name is the primitive's.
    """
    layers = [_bare(part) for part in _split(scope)[:-1]]
    named = [layer for layer in layers if layer and not _INSIDE.fullmatch(layer)]
    return "/".join(named) or None


def _split(scope: str) -> list[str]:
    """Split at the slashes outside of parentheses."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(scope):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(scope[start:place])
            start = place + 1
    return [*parts, scope[start:]]


def _bare(part: str) -> str:
    """Return a part of a scope without calls and transformations around it."""
    while match := _TRANSFORMED.fullmatch(part):
        part = match[1]
    return "" if _CALL.fullmatch(part) else part
