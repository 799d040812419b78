"""The packages that ``stepscope run --as`` replaces: each of their names, and the name of ours that takes over."""

from __future__ import annotations

from stepscope.collect.start.stand_in import Package
from stepscope.compat import mindspore
from stepscope.compat.fluid import network

#: What `paddle.fluid.profiler` offered, and `paddle.utils.profiler` after it.
_FLUID = ("cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler")

#: What the samples of its document use besides.
_NETWORK = f"{network.__name__}."
_FLUID_ITSELF = ("Executor", "CPUPlace", "CUDAPlace", "default_startup_program", "default_main_program")
_LAYERS = ("data", "conv2d", "fc")

#: By the name that ``--as`` takes.
PACKAGES: dict[str, Package] = {
    "fluid": Package(
        trigger="paddle",
        home="stepscope.compat.fluid.profiler",
        names={
            **{path: {name: name for name in _FLUID} for path in ("paddle.fluid.profiler", "paddle.utils.profiler")},
            "paddle.fluid": {name: _NETWORK + name for name in _FLUID_ITSELF},
            "paddle.fluid.layers": {name: _NETWORK + name for name in _LAYERS},
        },
        absent=("paddle.fluid", "paddle.fluid.profiler", "paddle.fluid.layers", "paddle.utils.profiler"),
    ),
    "mindspore": Package(
        trigger="mindspore",
        home=mindspore.__name__,
        names={
            "mindspore": {"Profiler": "Profiler", "EnvProfiler": "EnvProfiler"},
            "mindspore.profiler": {name: name for name in mindspore.__all__},
            "mindspore.profiler.profiler": {
                "Profile": "profile",
                "Profiler": "Profiler",
                "analyse": "analyse",
                "tensorboard_trace_handler": "tensorboard_trace_handler",
            },
            "mindspore.profiler.common.constant": {
                name: name
                for name in ("AicoreMetrics", "ExportType", "HostSystem", "ProfilerActivity", "ProfilerLevel")
            },
            "mindspore.profiler.dynamic_profiler": {"DynamicProfilerMonitor": "DynamicProfilerMonitor"},
            "mindspore.profiler.envprofiler": {"EnvProfiler": "EnvProfiler"},
            "mindspore.profiler.experimental_config": {"_ExperimentalConfig": "_ExperimentalConfig"},
            "mindspore.profiler.mstx": {"Mstx": "mstx"},
            "mindspore.profiler.schedule": {"Schedule": "schedule", "ProfilerAction": "ProfilerAction"},
        },
    ),
}
