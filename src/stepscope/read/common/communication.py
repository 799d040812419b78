"""Which work is communication between ranks, where the source does not say it: by names, library by library.

A reader asks here last. What surrounds the work comes first: the arguments that torch.distributed writes, the calls and
annotations around it, and the operator that launched it. The table can be extended (``docs/extending.md``).
"""

from __future__ import annotations

import logging
import re
from dataclasses import astuple, dataclass
from functools import cache

from stepscope.extensions import besides


@dataclass(frozen=True)
class CommunicationLibrary:
    """How a library that moves data between ranks names its work.

    Attributes:
        transport: What the column ``transport`` says.
        kernels: Regular expression of kernels: looked for from the beginning of each part of the function's name
            (``deep_ep::intranode::combine`` has three), without arguments of templates and functions, in any case.
        operators: Regular expression of the whole name of a host operator whose own kernels communicate; empty: none.
    """

    transport: str
    kernels: str
    operators: str = ""


#: The table, most special names first.
LIBRARIES: tuple[CommunicationLibrary, ...] = (
    CommunicationLibrary("nccl", r"nccl(?:sym)?(?:dev)?(?:kernel|func)|nccl_|ncclx|ncclsymk"),
    CommunicationLibrary("rccl", r"rccl|mscclkernel"),
    CommunicationLibrary("mscclpp", r"mscclpp", r"mscclpp::\w+"),
    CommunicationLibrary("msccl", r"msccl"),
    CommunicationLibrary(
        "deep_ep",
        r"(?:internode|intranode)\w*::(?:cached_)?(?:dispatch|combine|notify|barrier|clean)",
        r"(?:deep_ep|uccl)::(?!\w*layout)\w+",
    ),
    CommunicationLibrary("mori", r"ep(?:dispatch|combine)(?:intra|inter|kernel|low)", r"mori::\w+"),
    CommunicationLibrary(
        "nvshmem",
        r"nvshmem|rocshmem|ishmem|(?:barrier|sync|alltoall|broadcast|fcollect|rdxn|reduce)\w*_on_stream_kernel",
        r"nvshmem\w*::\w+|symm_mem::nvshmem\w+",
    ),
    CommunicationLibrary("userbuffers", r"k?userbuffers_"),
    CommunicationLibrary(
        "symm_mem",
        r"(?:(?:one|two)_shot|multimem)_(?:\w+_)?(?:all|reduce)_?\w*|symm(?:etric)?_mem(?:ory)?::",
        r"symm_mem::(?!memset|stream_write|get_|rendezvous)\w+",
    ),
    CommunicationLibrary(
        "custom_all_reduce", r"\w*cross_device_(?:reduce|store)|quick_?reduce|allreduce_prototype", r"_C_custom_ar::\w+"
    ),
    CommunicationLibrary(
        "tensorrt_llm",
        r"(?:moe_\w*)?allreduce_fusion|(?:moe_)?custom_?all_?reduce|lamport\w*all_?reduce|trtllm_mnnvl_allreduce"
        r"|(?:one|two)_?shot\w*all_?reduce|all_?reduce\w*(?:one|two)_?shot|moe_?(?:a2a|all_?to_?all)",
        r"(?:trtllm|tensorrt_llm|flashinfer)::\w*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w*",
    ),
    CommunicationLibrary("oneccl", r"oneccl|ccl::", r"(?:oneccl|torch_ccl)::\w+"),
    CommunicationLibrary("xla", r"(?:ragged)?(?:allreduce|alltoall)kernelimpl"),
    # Operators of torch.distributed, and of whoever calls one like a collective, whatever their kernels are called.
    CommunicationLibrary(
        "",
        r"(?!)",
        r"_?c10d(?:_functional)?(?:_autograd)?::\w+"
        r"|(?!aten::)\w+::_?\w*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w*",
    ),
)

#: An operation within a name.
_OPERATION = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|dispatch|combine|notify", re.IGNORECASE
)
#: A name that Itanium's rules have mangled, and one of its parts.
_MANGLED = re.compile(r"_ZN?[KVr]*(?=\d)")
_PART = re.compile(r"\d{1,4}")


def function_name(kernel: str) -> str:
    """Return the name of a kernel's function with its namespaces, without return type and arguments.

    ``void deep_ep::intranode::combine<__nv_bfloat16, 8>(int*)`` is ``deep_ep::intranode::combine``, and so is
    ``_ZN7deep_ep9intranode7combineI13__nv_bfloat16Li8EEEvPi``.
    """
    if mangled := _MANGLED.match(kernel):
        parts, place = [], mangled.end()
        while size := _PART.match(kernel, place):
            place = size.end() + int(size[0])
            parts.append(kernel[size.end() : place])
        return "::".join(parts)
    head = kernel.replace("(anonymous namespace)", "_anonymous").partition("<")[0].partition("(")[0]
    return head.rpartition(" ")[2]


@cache
def libraries() -> tuple[CommunicationLibrary, ...]:
    """Return the table: the rows of other packages before ours."""
    found = []
    for name, row in besides("stepscope.communication", ()).items():
        try:
            re.compile(row.kernels), re.compile(row.operators)
            found.append(CommunicationLibrary(row.transport, row.kernels, row.operators))
        except (re.error, TypeError) as error:
            message = "stepscope: extension %s of stepscope.communication is left out: %s."
            logging.getLogger("stepscope").warning(message, name, error)
    return (*found, *LIBRARIES)


@cache
def fingerprint() -> list[tuple[str, ...]]:
    """Return the table as texts: tables of runs that were read with another are read again."""
    return [astuple(library) for library in libraries()]


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return one expression for the kernels of all libraries, and one for their operators."""
    operators = "|".join(f"(?:{library.operators})" for library in libraries() if library.operators)
    return _of_kernels("|".join(f"(?:{library.kernels})" for library in libraries())), re.compile(operators)


def _of_kernels(expression: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|::)(?:{expression})", re.IGNORECASE)


@cache
def transport_of_kernel(kernel: str) -> str | None:
    """Return the communication library that a kernel of this name belongs to; None for other kernels."""
    function = function_name(kernel)
    if not _patterns()[0].search(function):
        return None
    return next(library.transport for library in libraries() if _of_kernels(library.kernels).search(function))


def communicates(operator: str) -> bool:
    """Return whether the kernels that a host operator launches itself communicate, by its name."""
    return _patterns()[1].fullmatch(operator) is not None


def operation_of(name: str) -> str | None:
    """Return the operation that a name contains, in lower case; None without one."""
    match = _OPERATION.search(name)
    return match[0].lower() if match else None
