"""The frameworks that stepscope records: one record each, from which everything that differs between them is looked up.

A new framework is one more record, and the modules it names. A record is a NamedTuple because the environment's hook
imports this module when Python starts: ``dataclasses`` would add a third to the time of that import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.extensions import extensions

if TYPE_CHECKING:
    from stepscope.collect.options import Options

#: A module and the name of a class or function in it. Imported on first use: most programs use one framework.
Located = tuple[str, str]


class CollectorEntry(NamedTuple):
    """A collector.

    Attributes:
        name: Key in the manifest's ``collectors``.
        module: Module that holds it.
        kind: Its class; called without arguments.
        on_demand: Options of which one must be on; empty for a collector that every window gets.
    """

    name: str
    module: str
    kind: str
    on_demand: tuple[str, ...] = ()


class Framework(NamedTuple):
    """What stepscope knows of one framework.

    Attributes:
        name: Its package; also the key of its operators' collector in the manifest.
        title: Its name in messages and reports.
        launched: Command that records the ranks of a job, started by the framework's launcher.
        operators: Collector of what the framework itself records: the tightest window, so it starts first.
        steps: Class of the step hooks; see :class:`stepscope.collect.steps.StepHooks`.
        trial: Runs at least one operator and waits for it, given the imported package; `stepscope doctor` records that.
        waits: Collector of waits for data.
        extras: Further collectors; they start last.
        build: Function that is called with the options before the training begins: it builds what is missing.
        early: Function that is called with the options when a program that `stepscope run` records has imported the
            framework: it begins with what must see the program from there on, which a window ends.
        launcher_modules: Modules (``python -m``) that start processes which train, or do not train themselves.
        launcher_scripts: File names of scripts for which the same holds.
        not_training: Variable of the environment, and its values in processes that the launcher starts and that do not
            train.
    """

    name: str
    title: str
    launched: str
    operators: CollectorEntry
    steps: Located
    trial: Callable[[Any], object]
    waits: CollectorEntry | None = None
    extras: tuple[CollectorEntry, ...] = ()
    build: Located | None = None
    early: Located | None = None
    launcher_modules: tuple[str, ...] = ()
    launcher_scripts: tuple[str, ...] = ()
    not_training: tuple[str, tuple[str, ...]] = ("", ())


_TORCH = Framework(
    name="torch",
    title="PyTorch",
    launched="torchrun … -m stepscope run",
    operators=CollectorEntry("torch", "stepscope.collect.torch.kineto_collector", "TorchCollector"),
    steps=("stepscope.collect.torch.torch_steps", "TorchSteps"),
    trial=lambda torch: torch.ones(64, device="cuda" if torch.cuda.is_available() else "cpu").add(1.0).sum().item(),
    waits=CollectorEntry("dataloader", "stepscope.collect.torch.torch_waits", "DataLoaderCollector"),
    build=("stepscope.collect.torch.native_choice", "build_early"),
    launcher_modules=("torch.distributed.run", "torch.distributed.launch", "torch.utils.collect_env"),
    launcher_scripts=("torchrun",),
)
_MINDSPORE = Framework(
    name="mindspore",
    title="MindSpore",
    launched="msrun … python -m stepscope run",
    operators=CollectorEntry("mindspore", "stepscope.collect.mindspore.mindspore_collector", "MindSporeCollector"),
    steps=("stepscope.collect.mindspore.mindspore_steps", "MindSporeSteps"),
    trial=lambda mindspore: (mindspore.Tensor([1.0]) + mindspore.Tensor([2.0])).asnumpy(),
    waits=CollectorEntry("minddata", "stepscope.collect.mindspore.minddata_waits", "MindDataCollector"),
    extras=(
        CollectorEntry(
            "parallel", "stepscope.collect.mindspore.parallel_strategy", "ParallelCollector", ("parallel_strategy",)
        ),
        CollectorEntry(
            "mindspore_shapes",
            "stepscope.collect.mindspore.mindspore_calls",
            "MindSporeShapesCollector",
            ("record_shapes", "with_flops"),
        ),
    ),
    early=("stepscope.collect.mindspore.minddata_recording", "begin_early"),
    launcher_modules=("mindspore.parallel.cluster.run",),
    launcher_scripts=("msrun", "dataset-cache"),
    not_training=("MS_ROLE", ("MS_SCHED", "MS_PSERVER")),  # msrun gives them the program's own command line
)
_PADDLE = Framework(
    name="paddle",
    title="Paddle",
    launched="python -m paddle.distributed.launch … stepscope run",
    operators=CollectorEntry("paddle", "stepscope.collect.paddle.paddle_collector", "PaddleCollector"),
    steps=("stepscope.collect.paddle.paddle_steps", "PaddleSteps"),
    trial=lambda paddle: paddle.sum(paddle.ones([8])).numpy(),
    waits=CollectorEntry("paddle_data", "stepscope.collect.paddle.paddle_waits", "PaddleDataCollector"),
    launcher_modules=("paddle.distributed.launch",),
    launcher_scripts=("fleetrun",),
)
_JAX = Framework(
    name="jax",
    title="JAX",
    launched="python -m stepscope run",
    operators=CollectorEntry("jax", "stepscope.collect.jax.jax_collector", "JaxCollector"),
    steps=("stepscope.collect.jax.jax_steps", "JaxSteps"),
    trial=lambda jax: jax.numpy.ones([8]).sum().block_until_ready(),
)

#: By name, in the order in which collectors start.
FRAMEWORKS = {framework.name: framework for framework in (_TORCH, _MINDSPORE, _PADDLE, _JAX)}


def begin_early(name: str, options: Options) -> None:
    """Do what a framework, which the program has imported just now, needs from its import on."""
    _call(FRAMEWORKS[name].early, options)
    _call(FRAMEWORKS[name].build, options)
    extensions("stepscope.collectors")


def build_early(options: Options) -> None:
    """Build what is missing for the frameworks that are imported, and load extensions: before the training begins."""
    extensions("stepscope.collectors")
    for framework in FRAMEWORKS.values():
        if framework.name in sys.modules:
            _call(framework.build, options)


def _call(function: Located | None, options: Options) -> None:
    if function is not None:
        getattr(import_module(function[0]), function[1])(options)
