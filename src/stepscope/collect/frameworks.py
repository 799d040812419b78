"""The frameworks that stepscope records: one record each, which holds all differences between them.

To add a framework, add a record and the modules that it names. Records are NamedTuples because the start-up hook
imports this module when Python starts: importing ``dataclasses`` would make that a third slower.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from stepscope.collect.options import Options

#: A module and the name of a class or function in it. It is imported on first use: most programs use one framework.
Located = tuple[str, str]


class CollectorEntry(NamedTuple):
    """A collector.

    Attributes:
        name: Key in the manifest's ``collectors``.
        module: Module that holds it.
        kind: Name of its class; called without arguments.
        on_demand: Options, at least one of which must be on; empty for a collector that every window gets.
    """

    name: str
    module: str
    kind: str
    on_demand: tuple[str, ...] = ()


class Framework(NamedTuple):
    """One framework.

    Attributes:
        name: Its package; also the key of its operators' collector in the manifest.
        title: Its name in messages and reports.
        launched: Command that records the ranks of a job, started by the framework's launcher.
        operators: Collector of the framework's own recorder. It starts first, so that its window is the shortest.
        steps: Class of the step hooks; see :class:`stepscope.collect.steps.StepHooks`.
        trial: Runs at least one operator of the imported package and waits for it; `stepscope doctor` records it.
        compilations: Class of the hooks; see :class:`stepscope.collect.host.compilations.Watcher`. None if it compiles
            nothing.
        waits: Collectors of waits for data, one for each kind of loader.
        objects: Classes of models and optimizers, whose living objects :mod:`.host.live_objects` knows; each in the
            module that defines it, which the package's import imports.
        uses: Class of hooks that note what the program uses, from the import of the package to the end of the run.
        extras: Further collectors; they start last.
        build: Called with the options before the training begins; builds a missing native recorder.
        early: Called with the options when a program under `stepscope run` has imported the framework; begins
            recordings that must cover the program from then on. The window ends them.
        unrehearsed: Options that a rehearsal leaves off, because the framework cannot switch their recording off again.
        launcher_modules: Modules (``python -m``) that do not train: launchers and tools.
        launcher_scripts: File names of scripts that do not train.
        not_training: Variable of the environment, and its values in processes that the launcher starts but that do not
            train.
    """

    name: str
    title: str
    launched: str
    operators: CollectorEntry
    steps: Located
    trial: Callable[[Any], object]
    compilations: Located | None = None
    waits: tuple[CollectorEntry, ...] = ()
    objects: tuple[Located, ...] = ()
    uses: Located | None = None
    extras: tuple[CollectorEntry, ...] = ()
    build: Located | None = None
    early: Located | None = None
    unrehearsed: tuple[str, ...] = ()
    launcher_modules: tuple[str, ...] = ()
    launcher_scripts: tuple[str, ...] = ()
    not_training: tuple[str, tuple[str, ...]] = ("", ())


_TORCH = Framework(
    name="torch",
    title="PyTorch",
    launched="torchrun … -m stepscope run",
    operators=CollectorEntry("torch", "stepscope.collect.torch.kineto_collector", "TorchCollector"),
    compilations=("stepscope.collect.torch.torch_compilations", "TorchCompilations"),
    steps=("stepscope.collect.torch.torch_steps", "TorchSteps"),
    trial=lambda torch: torch.ones(64, device="cuda" if torch.cuda.is_available() else "cpu").add(1.0).sum().item(),
    waits=(CollectorEntry("dataloader", "stepscope.collect.torch.torch_waits", "DataLoaderCollector"),),
    objects=(("torch.nn.modules.module", "Module"), ("torch.optim.optimizer", "Optimizer")),
    uses=("stepscope.collect.torch.state.torch_uses", "TorchUses"),
    extras=(CollectorEntry("torch_state", "stepscope.collect.torch.state.torch_state", "TorchState"),),
    build=("stepscope.collect.torch.native_choice", "build_early"),
    launcher_modules=("torch.distributed.run", "torch.distributed.launch", "torch.utils.collect_env"),
    launcher_scripts=("torchrun",),
)
_MINDSPORE = Framework(
    name="mindspore",
    title="MindSpore",
    launched="msrun … python -m stepscope run",
    operators=CollectorEntry("mindspore", "stepscope.collect.mindspore.mindspore_collector", "MindSporeCollector"),
    compilations=("stepscope.collect.mindspore.mindspore_compilations", "MindSporeCompilations"),
    steps=("stepscope.collect.mindspore.mindspore_steps", "MindSporeSteps"),
    trial=lambda mindspore: (mindspore.Tensor([1.0]) + mindspore.Tensor([2.0])).asnumpy(),
    waits=(CollectorEntry("minddata", "stepscope.collect.mindspore.minddata_waits", "MindDataCollector"),),
    objects=(("mindspore.nn.cell", "Cell"),),
    uses=("stepscope.collect.mindspore.mindspore_state", "MindSporeUses"),
    extras=(
        CollectorEntry("mindspore_state", "stepscope.collect.mindspore.mindspore_state", "MindSporeState"),
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
    unrehearsed=("profile_memory", "data_process"),
    launcher_modules=("mindspore.parallel.cluster.run",),
    launcher_scripts=("msrun", "dataset-cache"),
    not_training=("MS_ROLE", ("MS_SCHED", "MS_PSERVER")),  # msrun gives them the program's own command line
)
_PADDLE = Framework(
    name="paddle",
    title="Paddle",
    launched="python -m paddle.distributed.launch … $(which stepscope) run",
    operators=CollectorEntry("paddle", "stepscope.collect.paddle.paddle_collector", "PaddleCollector"),
    compilations=("stepscope.collect.paddle.paddle_compilations", "PaddleCompilations"),
    steps=("stepscope.collect.paddle.paddle_steps", "PaddleSteps"),
    trial=lambda paddle: paddle.sum(paddle.ones([8])).numpy(),
    waits=(CollectorEntry("paddle_data", "stepscope.collect.paddle.paddle_waits", "PaddleDataCollector"),),
    objects=(("paddle.nn.layer.layers", "Layer"), ("paddle.optimizer.optimizer", "Optimizer")),
    extras=(CollectorEntry("paddle_state", "stepscope.collect.paddle.paddle_state", "PaddleState"),),
    launcher_modules=("paddle.distributed.launch",),
    launcher_scripts=("fleetrun",),
)
_JAX = Framework(
    name="jax",
    title="JAX",
    launched="python -m stepscope run",
    operators=CollectorEntry("jax", "stepscope.collect.jax.jax_collector", "JaxCollector"),
    compilations=("stepscope.collect.jax.jax_compilations", "JaxCompilations"),
    steps=("stepscope.collect.jax.jax_steps", "JaxSteps"),
    uses=("stepscope.collect.jax.jax_state", "JaxUses"),
    waits=(
        CollectorEntry("grain", "stepscope.collect.jax.jax_waits", "GrainCollector"),
        CollectorEntry("grain_dataset", "stepscope.collect.jax.jax_waits", "GrainDatasetCollector"),
    ),
    extras=(CollectorEntry("jax_state", "stepscope.collect.jax.jax_state", "JaxState"),),
    trial=lambda jax: jax.numpy.ones([8]).sum().block_until_ready(),
)

#: By name, in the order in which collectors start.
FRAMEWORKS = {framework.name: framework for framework in (_TORCH, _MINDSPORE, _PADDLE, _JAX)}


def imported_frameworks() -> list[Framework]:
    """Return the frameworks that the program has imported."""
    return [framework for framework in FRAMEWORKS.values() if framework.name in sys.modules]


@cache
def is_found(package: str) -> bool:
    """Whether the path has a package; looked up once: it takes 0.1 ms, and each window asks for each framework."""
    from importlib.util import find_spec

    return find_spec(package) is not None


def is_installed(package: str) -> bool:
    """Whether a package can be imported, or is."""
    return package in sys.modules or is_found(package)


def begin_early(name: str, options: Options) -> None:
    """Call the ``early`` and ``build`` functions of a framework that the program has just imported."""
    _call(FRAMEWORKS[name].early, options)
    _call(FRAMEWORKS[name].build, options)
    _load_extensions()


def build_early(options: Options) -> None:
    """Before the training: call the ``build`` function of every imported framework, and load extensions."""
    _load_extensions()
    for framework in imported_frameworks():
        _call(framework.build, options)


def _call(function: Located | None, options: Options) -> None:
    if function is not None:
        getattr(import_module(function[0]), function[1])(options)


def _load_extensions() -> None:
    from stepscope.extensions import extensions

    extensions("stepscope.collectors")
