"""Choice of the recorder by default: the native one if it records everything that the options want, else Kineto."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

from stepscope.collect.options import Activity, Options
from stepscope.collect.torch import native_build, process_groups
from stepscope.collect.torch.native_calls import cannot_watch
from stepscope.native.recorder.build import Torch, knows_groups

_SERVED = {Activity.CPU, Activity.CUDA}

#: Seconds that a program waits for the recorder to be built, before its training begins: if nothing else, and if the
#: options name it. A window could not wait: what does nothing for some seconds counts as hung there.
PATIENCE, DEMANDED = 30.0, 120.0

_LOG = logging.getLogger("stepscope")


def unserved_switches(options: Options) -> list[str]:
    """Return what the options want, or the program does, that the native recorder does not record."""
    asked = {
        # Kineto would take the place of the program's own profile function: nobody records stacks then.
        "stacks": options.with_stack and cannot_watch() is not None and sys.getprofile() is None,
        "modules": options.with_modules and cannot_watch() is not None,
        "activities but CPU and CUDA": bool(set(options.activities) - _SERVED),
        "collectives": process_groups.initialised() and not knows_groups(native_build.installed(sys.modules["torch"])),
    }
    return [name for name, wanted in asked.items() if wanted]


def reason_for_kineto(options: Options) -> str | None:
    """Return why Kineto records, unless the options name the native recorder; None if the native recorder does.

    Nothing is built while the training runs: :func:`build_early` does that before, or ``stepscope doctor --build``.
    """
    if options.sample < 1:  # Kineto cannot take a sample
        return None
    known = native_build.installed(sys.modules["torch"])
    reason = _better_served(options, known) or native_build.reason_against(known)
    if reason is None and native_build.is_built(known) is None:
        return "it is not built yet, and a training does not wait for it; `stepscope doctor --build` builds it"
    return reason


def build_early(options: Options) -> None:
    """Have the recorder built if it will serve and is missing. The program waits for that at most :data:`PATIENCE`.

    What takes longer is built beside the training, in a process of its own, for the next one.
    """
    known = native_build.installed(sys.modules["torch"])
    demanded = options.collector == "native"
    if options.collector == "kineto" or native_build.is_built(known) or native_build.reason_against(known):
        return
    if not demanded and _better_served(options, known):
        return
    _LOG.warning("stepscope: building the recorder for torch %s, once; this takes some seconds.", known.version)
    with suppress(OSError):  # the window reports that the recorder is missing
        native_build.build_beside(known, DEMANDED if demanded else PATIENCE)


def _better_served(options: Options, known: Torch) -> str | None:
    """Return why Kineto serves better, regardless of whether the native recorder can be built."""
    unserved = unserved_switches(options)
    if unserved:
        return f"it does not serve {', '.join(unserved)}"
    for device in filter(_is_there, _devices(options)):
        nvidia = device == Activity.CUDA.value and sys.modules["torch"].version.cuda
        reason = native_build.reason_against_gpus(known) if nvidia else "the native recorder does not know it"
        if reason is not None:
            return f"work of {device} is left to Kineto: {reason}"
    return None


def _devices(options: Options) -> list[str]:
    """Return the names of torch's modules of devices whose work is wanted."""
    wanted = options.activities or tuple(Activity)
    names = [activity.value for activity in wanted if activity is not Activity.CPU]
    own = getattr(sys.modules["torch"]._C, "_get_privateuse1_backend_name", str)()
    return [own if name == Activity.PRIVATE_USE.value else name for name in names]


def _is_there(device: str) -> bool:
    """Whether torch finds such a device; True if the query fails, so that Kineto tries.

    ``device_count`` asks NVIDIA's NVML. ``is_available`` initialises CUDA, after which a program can neither choose its
    devices nor use them in a forked child.
    """
    module: Any = getattr(sys.modules["torch"], device, None)
    with suppress(Exception):
        return bool(module is not None and module.device_count() > 0)
    return True
