"""Models of PyTorch: sizes, types and modes of their modules, and what hangs on them.

Only attributes are read that run neither an operator nor code of the program.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from stepscope.collect.host.live_objects import source_of

#: Names of modules that a list holds; models; and modules that are read, about 5 µs each.
_NAMES, _MODELS, _MOST = 64, 16, 20_000
#: Attribute of a module → what its functions are called for.
HOOKS = {
    "_forward_pre_hooks": "forward_pre",
    "_forward_hooks": "forward",
    "_backward_pre_hooks": "backward_pre",
    "_backward_hooks": "backward",
}
_PARAMETER_HOOKS = {"_backward_hooks": "gradient", "_post_accumulate_grad_hooks": "post_accumulate_grad"}


class ModelState:
    """What is known of one model; a model is a module that no other contains.

    Args:
        root: The module.
    """

    def __init__(self, root: Any) -> None:  # noqa: ANN401 - a torch.nn.Module
        self._torch: Any = sys.modules["torch"]
        self._nn = self._torch.nn
        self._seen: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._bytes: dict[str, Counter[str]] = {"parameters": Counter(), "buffers": Counter(), "devices": Counter()}
        self._names: dict[str, list[str]] = {}
        self._hooks: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._embeddings: list[dict[str, Any]] = []
        self._root = root

    def read(self) -> dict[str, Any]:
        """Return what the model is, as plain values."""
        root = self._root
        for name, module in named_modules(root):
            self._counts["modules"] += 1
            try:
                self._read(name, module)
            except Exception:  # noqa: BLE001 - law 1: a module of another sort; it is counted
                self._counts["modules_unread"] += 1
        counts = self._counts
        found: dict[str, Any] = {
            "class": type(root).__name__,
            "modules": counts["modules"],
            "training": vars(root).get("training"),
            "parameters": counts["parameters"],
            "parameter_elements": counts["elements"],
            "parameter_bytes": sum(self._bytes["parameters"].values()),
            "trainable_parameters": counts["trainable"],
            "trainable_bytes": counts["trainable_bytes"],
            "bytes_by_dtype": dict(self._bytes["parameters"]),
            "buffer_bytes_by_dtype": dict(self._bytes["buffers"]),
            "bytes_by_device": dict(self._bytes["devices"]),
        }
        for key in ("conv", "conv_channels_last", "conv_any_layout", "sync_batchnorm", "batchnorm", "modules_unread"):
            if counts[key]:
                found[key] = counts[key]
        for key, names in self._names.items():
            found[f"{key}_count"], found[key] = counts[key], names
        if self._hooks:
            found["hooks"] = list(self._hooks.values())[:_NAMES]
        if self._embeddings:
            found["embeddings"] = self._embeddings[:_NAMES]
        return {**found, **self._parallel()}

    def _note(self, key: str, name: str) -> None:
        self._counts[key] += 1
        names = self._names.setdefault(key, [])
        if len(names) < _NAMES:
            names.append(name)

    def _read(self, name: str, module: Any) -> None:  # noqa: ANN401 - a torch.nn.Module
        state = vars(module)
        if state.get("training") is False and vars(self._root).get("training"):
            self._note("eval_modules", name)
        if state.get("gradient_checkpointing") is True or type(module).__name__ == "CheckpointWrapper":
            self._note("checkpointed_modules", name)
        if state.get("_compiled_call_impl") is not None or type(module).__name__ == "OptimizedModule":
            self._note("compiled_modules", name)
        own = [one for one in state.get("_parameters", {}).values() if one is not None]
        new = [one for one in own if self._is_new(one)]
        if own and not any(one.requires_grad for one in own):
            self._note("frozen_modules", name)
        for one in new:
            self._parameter(name, one)
        for one in state.get("_buffers", {}).values():
            if one is not None and self._is_new(one):
                self._bytes["buffers"][_short(one.dtype)] += _bytes_of(one)
        for attribute, kind in HOOKS.items():
            for function in list((state.get(attribute) or {}).values()):
                self._hook("module", kind, function, name)
        self._layer(name, module, state)

    def _is_new(self, tensor: Any) -> bool:  # noqa: ANN401 - a tensor: shared ones count once
        new = id(tensor) not in self._seen
        self._seen.add(id(tensor))
        return new

    def _parameter(self, name: str, tensor: Any) -> None:  # noqa: ANN401
        size = _bytes_of(tensor)
        self._counts["parameters"] += 1
        self._counts["elements"] += tensor.numel()
        self._bytes["parameters"][_short(tensor.dtype)] += size
        self._bytes["devices"][str(tensor.device)] += size
        if tensor.requires_grad:
            self._counts["trainable"] += 1
            self._counts["trainable_bytes"] += size
        for attribute, kind in _PARAMETER_HOOKS.items():
            for function in list((getattr(tensor, attribute, None) or {}).values()):
                self._hook("parameter", kind, function, name)

    def _hook(self, where: str, kind: str, function: Any, name: str) -> None:  # noqa: ANN401 - anything callable
        source = source_of(function)
        row = self._hooks.setdefault(
            (where, kind, *source.values()), {"on": where, "kind": kind, **source, "count": 0, "first": name}
        )
        row["count"] += 1

    def _layer(self, name: str, module: Any, state: dict[str, Any]) -> None:  # noqa: ANN401
        layers = self._nn.modules
        weight = state.get("_parameters", {}).get("weight")
        if isinstance(module, layers.conv._ConvNd) and weight is not None and weight.dim() == 4:
            last = weight.is_contiguous(memory_format=self._torch.channels_last)
            self._counts["conv"] += 1
            if last:
                self._counts["conv_any_layout" if weight.is_contiguous() else "conv_channels_last"] += 1
        elif isinstance(module, layers.batchnorm._BatchNorm):
            self._counts["sync_batchnorm" if isinstance(module, layers.batchnorm.SyncBatchNorm) else "batchnorm"] += 1
        elif isinstance(module, layers.sparse.Embedding | layers.sparse.EmbeddingBag) and weight is not None:
            self._embeddings.append(
                {"name": name, "shape": list(weight.shape), "sparse": state.get("sparse"), "bytes": _bytes_of(weight)}
            )

    def _parallel(self) -> dict[str, Any]:
        """Return the settings of a DistributedDataParallel, or nothing."""
        parallel = self._nn.parallel.DistributedDataParallel
        if not isinstance(self._root, parallel):
            return {}
        state = vars(self._root)
        found = {
            "bucket_cap_bytes": state.get("bucket_bytes_cap"),
            "gradient_as_bucket_view": state.get("gradient_as_bucket_view"),
            "find_unused_parameters": state.get("find_unused_parameters"),
            "static_graph": state.get("static_graph"),
            # torch 2.13 has renamed it
            "broadcast_buffers": state.get("broadcast_buffers", state.get("forward_sync_buffers")),
        }
        try:
            said = self._root._get_ddp_logging_data()
            for key in ("bucket_sizes", "rebuilt_bucket_sizes"):
                found[key] = [int(size) for size in str(said.get(key, "")).split(",") if size.strip().isdecimal()]
            found["comm_hook"] = said.get("comm_hook") or None
        except Exception:  # noqa: BLE001 - another version of torch: the buckets stay unknown
            found["bucket_sizes"] = None
        return {"ddp": found}


def models(modules: list[Any]) -> tuple[list[dict[str, Any]], int]:
    """Return what the models are that these modules make up, and how many models or modules were left out.

    Args:
        modules: Objects of ``torch.nn.Module``.
    """
    left_out = max(len(modules) - _MOST, 0)
    modules = modules[:_MOST]
    inner = {id(child) for module in modules for child in _children(module)}
    roots = [module for module in modules if id(module) not in inner]
    found = [ModelState(root).read() for root in roots]
    found = [one for one in found if one["parameters"] or one.get("hooks")]
    found.sort(key=lambda one: -int(one["parameter_bytes"]))
    return found[:_MODELS], left_out + max(len(found) - _MODELS, 0)


def named_modules(root: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a torch.nn.Module
    """Yield a module and all modules in it once, with their names: ``Net.layer1.conv``."""
    waiting, seen = [(type(root).__name__, root)], {id(root)}
    while waiting:
        name, module = waiting.pop()
        yield name, module
        inner = [(key, child) for key, child in list((vars(module).get("_modules") or {}).items()) if child is not None]
        for key, child in reversed(inner):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{name}.{key}", child))


def _children(module: Any) -> list[Any]:  # noqa: ANN401
    return [child for child in list((vars(module).get("_modules") or {}).values()) if child is not None]


def _bytes_of(tensor: Any) -> int:  # noqa: ANN401
    return int(tensor.numel() * tensor.element_size())


def _short(dtype: Any) -> str:  # noqa: ANN401 - a torch.dtype
    return str(dtype).removeprefix("torch.")
