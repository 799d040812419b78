"""What a manifest holds: the keys that other modules rely on, and the type of each.

Keys that are not listed are kept as they are: a collector may describe itself with any of its own, and a later version
of stepscope adds some. The standard library only: the training process imports this module.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]

#: Numbers of ranks and processes, and times, fit into 64 bits with a sign.
_LARGEST = 2**63 - 1

#: Key → type. A list and a dictionary name the type of their items; an empty one takes any.
_TYPES: dict[str, Any] = {
    "stepscope": str,
    "status": str,
    "source": str,
    "worker": str,
    "host": str,
    "process": int,
    "cores": [int],
    "python": str,
    "arguments": [str],
    "rank": int,
    "rank_said": (int, None),
    "local_rank": int,
    "world_size": (int, None),
    "rank_found_by": str,
    "door": str,
    "options": {},
    "schedule": (str, None),
    "steps": {},
    "collectors": {"": {}},
    "losses": {"": int},
    "window": {"": int},
    "captures": [str],
    "cost": {"": int},
    "messages": [str],
    "speeds": [{}],
    "switches_unavailable": {},
    "left_out": {"": {"": str}},
    "imported_from": str,
    "imported_ns": int,
    "origin": {},
    "format": str,
}


def decode(content: bytes) -> Manifest:
    """Return the manifest in a file's bytes.

    Raises:
        ValueError: It is not what stepscope writes; the message says why, as the end of a sentence.
    """
    try:
        manifest = _valid(json.loads(content.decode("utf-8")))
    except UnicodeError:
        message = "it is not UTF-8"
        raise ValueError(message) from None
    except RecursionError:
        message = "it is nested too deep"
        raise ValueError(message) from None
    except ValueError as error:
        message = f"it is not JSON ({error})"
        raise ValueError(message) from None
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        message = "it is not the JSON object that stepscope writes"
        raise ValueError(message)
    for key, type_ in _TYPES.items():
        if key in manifest and not _is(manifest[key], type_):
            message = f"{key!r} is {_shown(manifest[key])}"
            raise ValueError(message)
    return manifest


def _valid(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the value with halves of surrogate pairs as escapes: a command line may have bytes that are not UTF-8."""
    if isinstance(value, dict):
        return {_valid(key): _valid(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_valid(inner) for inner in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _is(value: object, type_: Any) -> bool:  # noqa: ANN401 - a type, or a description of one
    if isinstance(type_, tuple):
        return value is None or _is(value, type_[0])
    if isinstance(type_, list):
        return isinstance(value, list) and all(_is(item, type_[0]) for item in value)
    if isinstance(type_, dict):
        return isinstance(value, dict) and all(_is(item, of) for of in type_.values() for item in value.values())
    if type_ is int:
        return type(value) is int and -_LARGEST <= value <= _LARGEST  # True is an int, too
    return isinstance(value, type_)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]} …"
