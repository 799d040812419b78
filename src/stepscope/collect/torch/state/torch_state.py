"""The state of a PyTorch program: switches, models, optimizers."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, ClassVar

from stepscope.collect.host import live_objects
from stepscope.collect.host.live_objects import source_of
from stepscope.collect.host.program_state import ProgramState, flushes_denormals
from stepscope.collect.journal.values import plain
from stepscope.collect.torch.state import torch_uses
from stepscope.collect.torch.state.torch_models import models

MODULE = ("torch.nn.modules.module", "Module")
OPTIMIZER = ("torch.optim.optimizer", "Optimizer")

#: Optimizers that are described.
_OPTIMIZERS = 16
#: Hooks on all modules of the program → what they are called for.
_GLOBAL_HOOKS = {
    "_global_forward_pre_hooks": "forward_pre",
    "_global_forward_hooks": "forward",
    "_global_backward_pre_hooks": "backward_pre",
    "_global_backward_hooks": "backward",
}


class TorchState(ProgramState):
    """Reads the state at the window's start, and at its end what its steps have used."""

    name = "torch_state"
    framework = "torch"
    #: Switches of an optimizer's groups that say how it computes.
    switches: ClassVar = ("foreach", "fused", "capturable", "differentiable", "maximize")

    def __init__(self) -> None:
        super().__init__()
        self._before: Counter[tuple[Any, ...]] = Counter()

    def state(self) -> dict[str, Any]:
        """Return switches of torch, the models and the optimizers."""
        torch: Any = sys.modules["torch"]
        self._before = torch_uses.used.copy()
        cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
        found = self.read(
            {
                "version": lambda: str(torch.__version__),
                "grad": torch.is_grad_enabled,
                "inference_mode": torch.is_inference_mode_enabled,
                "anomaly": torch.is_anomaly_enabled,
                "anomaly_check_nan": torch.is_anomaly_check_nan_enabled,
                "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
                "matmul_precision": torch.get_float32_matmul_precision,
                "deterministic": torch.are_deterministic_algorithms_enabled,
                "threads": torch.get_num_threads,
                "interop_threads": torch.get_num_interop_threads,
                "flush_denormal": flushes_denormals,
                "mkldnn": torch.backends.mkldnn.is_available,
                "mkldnn_enabled": lambda: bool(torch._C._get_mkldnn_enabled()),
                "cudnn_benchmark": lambda: bool(cudnn.benchmark),
                "cudnn_deterministic": lambda: bool(cudnn.deterministic),
                "cudnn_enabled": lambda: bool(cudnn.enabled),
                "tf32_matmul": lambda: _tf32(cuda.matmul),
                "tf32_cudnn": lambda: _tf32(getattr(cudnn, "conv", cudnn)),
                "attention": lambda: _attention(cuda),
                "cuda_initialized": torch.cuda.is_initialized,
                "autocast": lambda: _active_autocast(torch),
                "compile": lambda: list(torch_uses.compiles),
                "global_hooks": lambda: _global_hooks(sys.modules[MODULE[0]]),
            }
        )
        with torch._C.DisableTorchFunctionSubclass():  # subclasses of tensors may run code of the program
            described = self.read({"models": lambda: models(live_objects.alive(MODULE))})
            found["models"], found["models_left_out"] = described.get("models", (None, None))
            optimizers = live_objects.alive(OPTIMIZER)
            found |= self.read(
                {"optimizers": lambda: [self.optimizer(torch, one) for one in optimizers[-_OPTIMIZERS:]]}
            )
            found["optimizers_left_out"] = max(len(optimizers) - _OPTIMIZERS, 0)
        return found

    def optimizer(self, torch: Any, optimizer: Any) -> dict[str, Any]:  # noqa: ANN401 - torch, and one of its optimizers
        """Return class, sizes and switches of an optimizer, and how it walks through its parameters."""
        groups = list(optimizer.param_groups)
        parameters = [one for group in groups for one in group["params"]]
        switches = {key: plain(groups[0].get(key)) for key in self.switches if groups and key in groups[0]}
        state = list(vars(optimizer).get("state", {}).values())
        held = [value for one in state if isinstance(one, dict) for value in one.values()]
        return {
            "class": type(optimizer).__name__,
            "module": type(optimizer).__module__,
            "groups": len(groups),
            "parameters": len(parameters),
            "parameter_bytes": sum(one.numel() * one.element_size() for one in parameters),
            "without_gradient": sum(not one.requires_grad for one in parameters),
            "state_bytes": sum(one.numel() * one.element_size() for one in held if isinstance(one, torch.Tensor)),
            **switches,
            "implementation": _implementation(parameters, switches),
        }

    def uses(self) -> dict[str, Any]:
        """Return how often autocast, anomaly detection and hooks on tensors were used since the window's start."""
        counts = {key: count - self._before[key] for key, count in torch_uses.used.copy().items()}
        since = {key: count for key, count in counts.items() if count > 0}
        return {
            "autocast": [
                {"device": key[1], "dtype": key[2].removeprefix("torch."), "enabled": key[3], "entered": count}
                for key, count in since.items()
                if key[0] == "autocast"
            ],
            "anomaly_entered": since.get(("anomaly",), 0),
            "tensor_hooks": [
                {"function": key[1], "file": key[2], "line": key[3], "registered": count}
                for key, count in since.items()
                if key[0] == "tensor_hook"
            ],
        }


def _implementation(parameters: list[Any], switches: dict[str, Any]) -> str | None:
    """Return ``fused``, ``foreach`` or ``for-loop``; None for an optimizer that has no such choice."""
    if "foreach" not in switches:
        return None
    if switches.get("fused"):
        return "fused"
    if switches["foreach"] is None and not switches.get("fused"):
        choose = sys.modules[OPTIMIZER[0]]._default_to_fused_or_foreach
        return "foreach" if choose(parameters, bool(switches.get("differentiable")))[1] else "for-loop"
    return "foreach" if switches["foreach"] else "for-loop"


def _tf32(backend: Any) -> bool | None:  # noqa: ANN401 - torch's own
    precision = getattr(backend, "fp32_precision", None)
    return bool(backend.allow_tf32) if precision is None else precision == "tf32"


def _attention(cuda: Any) -> dict[str, bool]:  # noqa: ANN401 - torch.backends.cuda
    names = ("flash", "mem_efficient", "math", "cudnn")
    asked = {name: getattr(cuda, f"{name}_sdp_enabled", None) for name in names}
    return {name: bool(ask()) for name, ask in asked.items() if ask is not None}


def _active_autocast(torch: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    return [
        {"device": device, "dtype": str(torch.get_autocast_dtype(device)).removeprefix("torch.")}
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]


def _global_hooks(module: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - torch's module of Module
    return [
        {"on": "all modules", "kind": kind, **source_of(function)}
        for attribute, kind in _GLOBAL_HOOKS.items()
        for function in list((getattr(module, attribute, None) or {}).values())
    ]
