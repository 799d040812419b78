"""The state of a Paddle program: mode, flags, models and optimizers."""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import Any

from stepscope.collect.host import live_objects
from stepscope.collect.host.live_objects import source_of
from stepscope.collect.host.program_state import ProgramState, flushes_denormals
from stepscope.collect.journal.values import plain
from stepscope.collect.paddle.paddle_steps import OPTIMIZER

LAYER = ("paddle.nn.layer.layers", "Layer")

_MOST = 16
_FLAGS = (
    "FLAGS_check_nan_inf",
    "FLAGS_use_mkldnn",
    "FLAGS_use_onednn",
    "FLAGS_cudnn_exhaustive_search",
    "FLAGS_cudnn_deterministic",
    "FLAGS_allocator_strategy",
    "FLAGS_benchmark",
    "FLAGS_paddle_num_threads",
    "FLAGS_enable_pir_api",
    "FLAGS_prim_all",
)
_HOOKS = {"_forward_pre_hooks": "forward_pre", "_forward_post_hooks": "forward"}


class PaddleState(ProgramState):
    """Reads the state at the window's start."""

    name = "paddle_state"
    framework = "paddle"

    def state(self) -> dict[str, Any]:
        """Return mode, flags, models and optimizers."""
        paddle: Any = sys.modules["paddle"]
        return self.read(
            {
                "version": lambda: str(paddle.__version__),
                "dynamic_mode": lambda: bool(paddle.in_dynamic_mode()),
                "grad": lambda: bool(paddle.is_grad_enabled()),
                "default_dtype": paddle.get_default_dtype,
                "device": paddle.get_device,
                "flush_denormal": flushes_denormals,
                "amp_level": lambda: _amp(paddle),
                "flags": lambda: _flags(paddle),
                "models": lambda: _models(live_objects.alive(LAYER)),
                "optimizers": lambda: [
                    # Paddle makes objects of the base class for its own use.
                    _optimizer(one)
                    for one in live_objects.alive(OPTIMIZER)[-_MOST:]
                    if type(one).__name__ != "Optimizer"
                ],
            }
        )


def _amp(paddle: Any) -> str:  # noqa: ANN401 - the framework
    tracer = paddle.base.framework._dygraph_tracer()
    return str(tracer._amp_level).rpartition(".")[2] if tracer is not None else "O0"


def _flags(paddle: Any) -> dict[str, Any]:  # noqa: ANN401
    found: dict[str, Any] = {}
    for flag in _FLAGS:
        try:
            found |= {key: plain(value) for key, value in paddle.get_flags([flag]).items()}
        except Exception:  # noqa: BLE001, S112 - this build has no such flag, so it has no value
            continue
    return found


def _models(layers: list[Any]) -> list[dict[str, Any]]:
    inner = {id(child) for layer in layers for child in vars(layer).get("_sub_layers", {}).values()}
    found = [_model(layer) for layer in layers if id(layer) not in inner]
    found = [one for one in found if one["parameters"] or one["hooks"]]
    return sorted(found, key=lambda one: -int(one["parameter_elements"]))[:_MOST]


def _model(root: Any) -> dict[str, Any]:  # noqa: ANN401 - a paddle.nn.Layer
    counts: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    evaluating, hooks, sparse, seen, waiting = [], [], [], {id(root)}, [(type(root).__name__, root)]
    while waiting:
        name, layer = waiting.pop()
        state = vars(layer)
        counts["layers"] += 1
        if state.get("training") is False and vars(root).get("training"):
            evaluating.append(name)
        if state.get("_sparse"):
            sparse.append(name)
        for one in state.get("_parameters", {}).values():
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                counts["parameters"] += 1
                counts["trainable"] += not one.stop_gradient
                # `size` of a static graph's parameter would add an operator to the program.
                elements[str(one.dtype).rpartition(".")[2]] += math.prod(one.shape)
        for attribute, kind in _HOOKS.items():
            functions = list((state.get(attribute) or {}).values())
            hooks += [{"on": "module", "kind": kind, **source_of(one), "first": name} for one in functions]
        for key, child in reversed(list((state.get("_sub_layers") or {}).items())):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{name}.{key}", child))
    return {
        "class": type(root).__name__,
        "modules": counts["layers"],
        "training": vars(root).get("training"),
        "parameters": counts["parameters"],
        "trainable_parameters": counts["trainable"],
        "parameter_elements": sum(elements.values()),
        "elements_by_dtype": dict(elements),
        "eval_modules": evaluating[:64],
        "eval_modules_count": len(evaluating),
        "sparse_embeddings": sparse[:64],
        "hooks": hooks[:64],
    }


def _optimizer(optimizer: Any) -> dict[str, Any]:  # noqa: ANN401 - a paddle.optimizer.Optimizer
    state = vars(optimizer)
    parameters = list(state.get("_parameter_list") or [])
    flat = [one for group in parameters for one in (group["params"] if isinstance(group, dict) else [group])]
    return {
        "class": type(optimizer).__name__,
        "parameters": len(flat),
        "multi_tensor": plain(state.get("_use_multi_tensor")),
        "multi_precision": plain(state.get("_multi_precision")),
        "lazy_mode": plain(state.get("_lazy_mode")),
    }
