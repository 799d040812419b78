"""Which kernels communicate, by the names that libraries give them, and by what surrounds them in real captures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.read import read_files
from stepscope.read.common.communication import (
    LIBRARIES,
    communicates,
    function_name,
    operation_of,
    transport_of_kernel,
)
from tests.conftest import WriteTrace

#: As profilers show them: kernels of each library, and what they do.
KERNELS = [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "allreduce"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "nccl", None),
    ("ncclSymDevKernel_AllReduce_AGxLL_R(ncclSymDevArgs)", "nccl", "allreduce"),
    ("void mscclKernel_Sum_half_LL(ncclDevComm*, mscclAlgo*, mscclWork*)", "rccl", None),
    ("void rcclGenericKernel<4>(int)", "rccl", None),
    ("void mscclpp::collective::allreduceNvls<__half>(void*, int)", "mscclpp", "allreduce"),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*)", "deep_ep", "combine"),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*)", "deep_ep", "notify"),
    ("void deep_ep::internode::dispatch<false, 2, false, 16384, 8>(int4*, float*)", "deep_ep", "dispatch"),
    ("void deep_ep::internode::notify_dispatch<false, 2>(int const*)", "deep_ep", "notify"),
    ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", "deep_ep", "combine"),
    ("_ZN7deep_ep9internode8dispatchILb0ELi2ELb0ELi16384EEEvP4int4PfPi", "deep_ep", "dispatch"),
    ("void uccl::intranode::dispatch<4, 768, 8192>(int4*)", "deep_ep", "dispatch"),
    ("void primus_turbo::deep_ep::intranode::notify_dispatch<8>(int const*)", "deep_ep", "notify"),
    ("mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)", "mori", "dispatch"),
    ("nvshmemi_transfer_rma_p2p(void*)", "nvshmem", None),
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "nvshmem", "barrier"),
    ("_Z36barrier_on_stream_kernel_threadgroupIL13threadgroup_t1EEvii", "nvshmem", "barrier"),
    ("void alltoall_on_stream_kernel<float>(int, float*, float const*, unsigned long)", "nvshmem", "alltoall"),
    ("c10d::nvshmem_extension::allToAllV(void*, void*, long*)", "nvshmem", "alltoall"),
    ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)", "userbuffers", None),
    ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "userbuffers", None),
    ("_Z21kuserbuffers_pushsendPiS_P4int4S1_i", "userbuffers", None),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "custom_all_reduce", None),
    ("void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)", "custom_all_reduce", None),
    (
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<half>>(half*)",
        "custom_all_reduce",
        None,
    ),
    (
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "symm_mem",
        "all_reduce",
    ),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
        "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8>(Params)",
        "tensorrt_llm",
        "allreduce",
    ),
    (
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8, false>(AllReduceParams)",
        "tensorrt_llm",
        "allreduce",
    ),
    ("oneccl_allreduce_pcie<sycl::half, Rt64_128_PCIE, RingTransmit>", "oneccl", "allreduce"),
    ("oneccl_allgatherv_pcie<sycl::half>", "oneccl", "allgather"),
]
#: Names that contain such words and are something else: arguments, layouts, reductions within a device.
OTHERS = [
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void at::native::vectorized_elementwise_kernel<4, ncclKernel_like, std::array<char*, 2ul>>(int)",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>>(long*)",
    "void block_reduce_kernel<ncclDevKernel_AllReduce>(float*)",
    "void fused_moe_kernel_dispatch(int)",
    "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfEEEEvT1_",
    "triton_poi_fused_all_0",
    "",
]


@pytest.mark.parametrize(("kernel", "transport", "operation"), KERNELS)
def test_kernels_by_name(kernel: str, transport: str, operation: str | None) -> None:
    assert transport_of_kernel(kernel) == transport
    if operation is not None:
        assert operation_of(function_name(kernel)) == operation


@pytest.mark.parametrize("kernel", OTHERS)
def test_other_kernels(kernel: str) -> None:
    assert transport_of_kernel(kernel) is None


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("c10d::allreduce_", True),
        ("_c10d_functional::all_gather_into_tensor", True),
        ("symm_mem::two_shot_all_reduce_", True),
        ("_C_custom_ar::all_reduce", True),
        ("vllm::all_reduce", True),
        ("sgl_kernel::reduce_scatter", True),
        ("aten::add", False),
        ("aten::all", False),
        ("aten::broadcast_tensors", False),
        ("vllm::fused_moe", False),
        ("autograd::engine::evaluate_function: AddBackward0", False),
    ],
)
def test_operators_whose_kernels_communicate(operator: str, expected: bool) -> None:
    assert communicates(operator) is expected


def test_every_library_is_documented() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "definitions.md").read_text()
    section = page.partition("### Which kernels communicate")[2].partition("###")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")][1:]
    assert [name for row in rows for name in row.split(", ")] == [one.transport for one in LIBRARIES if one.transport]


def test_no_kernel_of_the_captures_is_taken_for_communication(shared_data: Path) -> None:
    """Given kernels of NVIDIA and AMD, then only those communicate that say so: NCCL's and multimem's."""
    names: set[str] = set()
    for path in ("hta/trace_diff/test/test", "tracelens/b200/eager_trace", "tracelens/mi300_bert_small"):
        document = json.loads(gzip.decompress((shared_data / "kineto" / f"{path}.json.gz").read_bytes()))
        names |= {event["name"] for event in document["traceEvents"] if event.get("cat") == "kernel"}
    communicating = {name for name in names if transport_of_kernel(name) is not None}
    assert len(names) > 150
    assert communicating == {name for name in names if "nccl" in name or "multimem_all_reduce" in name}


# What surrounds them: in real captures, with names that no list could know.


def renamed(path: Path, old: str, new: str) -> list[dict[str, Any]]:
    """Return the events of a capture with kernels called otherwise, and without arguments that tell the collective."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    events: list[dict[str, Any]] = [event for event in document["traceEvents"] if "ts" in event]
    for event in events:
        if event.get("cat") == "kernel" and old in event["name"]:
            event["name"] = new
            event["args"] = {key: value for key, value in event["args"].items() if key != "Collective name"}
    return events


def kinds_of(tables: dict[str, pl.DataFrame], name: str) -> dict[str, int]:
    spans = tables["spans"].filter(pl.col("name").cast(pl.String) == name)
    return dict(spans["kind"].cast(pl.String).value_counts().rows())


def test_a_kernel_that_a_collective_launched_communicates(shared_data: Path, write_trace: WriteTrace) -> None:
    """Given ``record_param_comms`` around the launch, then the kernel is its collective whatever it is called."""
    path = shared_data / "kineto/hta/trace_diff/control/control.json.gz"
    tables = read_files([write_trace(renamed(path, "nccl", "mystery_kernel"))])
    assert kinds_of(tables, "mystery_kernel") == {"collective": 60}
    assert sorted(tables["collectives"]["operation"].cast(pl.String).value_counts().rows()) == [
        ("all_reduce", 18),
        ("all_to_all", 42),
    ]


def test_a_kernel_that_a_communicating_operator_launched_communicates(
    shared_data: Path, write_trace: WriteTrace
) -> None:
    """Given vLLM on 8 GPUs: 73 kernels of ``symm_mem::multimem_all_reduce_``, then they communicate without a name."""
    path = shared_data / "kineto/tracelens/b200/eager_trace.json.gz"
    events = renamed(path, "multimem_all_reduce", "mystery_kernel")
    tables = read_files([write_trace(events)])
    assert kinds_of(tables, "mystery_kernel") == {"collective": 73}
    rows = tables["collectives"]["operation"].cast(pl.String).value_counts().rows()
    assert dict(rows)["all_reduce"] == 73


def test_a_kernel_inside_a_projected_annotation_communicates(shared_data: Path, write_trace: WriteTrace) -> None:
    """Given only the device's side of a capture, then the range ``nccl:…`` on the stream says what its kernel is."""
    path = shared_data / "kineto/tracelens/b200/eager_trace.json.gz"
    device = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
    events = [event for event in renamed(path, "ncclDevKernel", "mystery_kernel") if event.get("cat") in device]
    assert kinds_of(read_files([write_trace(events)]), "mystery_kernel") == {"collective": 1}
