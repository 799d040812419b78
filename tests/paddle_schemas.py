"""The formats of Paddle's two protobuf files, as Paddle defines them, for Google's library: an independent reader.

Read from the descriptors that paddlepaddle 1.8.5 (``profiler.proto``) and 3.3.1 (``nodetree.proto``) carry.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "string": 9,
    "uint32": 13,
    "uint64": 4,
    "int64": 3,
    "float": 2,
    "double": 1,
    "bytes": 12,
}
_LABELS = {"optional": 1, "required": 2, "repeated": 3}

#: Message → fields, each ``label type name = number``; ``enum`` lists names by number.
PROFILE = """
message MemCopy: optional uint64 bytes = 1
enum EventType: CPU GPUKernel
message Event: optional string name = 1, optional uint64 start_ns = 2, optional uint64 end_ns = 3,
    optional int64 device_id = 5, optional int64 sub_device_id = 6, optional MemCopy memcopy = 7,
    optional EventType type = 8, optional string detail_info = 9
enum Place: CUDAPlace CPUPlace CUDAPinnedPlace
message MemEvent: optional uint64 start_ns = 1, optional uint64 end_ns = 2, optional uint64 bytes = 3,
    optional Place place = 4, optional uint64 thread_id = 5, optional uint32 device_id = 6,
    optional string alloc_in = 7, optional string free_in = 8
message Profile: repeated Event events = 1, optional uint64 start_ns = 2, optional uint64 end_ns = 3,
    repeated MemEvent mem_events = 4
"""

NODE_TREES = """
enum TracerEventTypeProto: Operator Dataloader ProfileStep CudaRuntime Kernel Memcpy Memset UserDefined OperatorInner
    Forward Backward Optimization Communication PythonOp PythonUserDefined
enum TracerMemEventTypeProto: Allocate Free ReservedAllocate ReservedFree
message KernelEventInfoProto: required uint32 block_x = 1, required uint32 block_y = 2, required uint32 block_z = 3,
    required uint32 grid_x = 4, required uint32 grid_y = 5, required uint32 grid_z = 6,
    required uint32 dynamic_shared_memory = 7, required uint32 static_shared_memory = 8,
    required uint32 registers_per_thread = 9, required uint32 local_memory_per_thread = 10,
    required uint32 local_memory_total = 11, required uint64 queued = 12, required uint64 submitted = 13,
    required uint64 completed = 14, required float blocks_per_sm = 15, required float warps_per_sm = 16,
    required float occupancy = 17
message MemcpyEventInfoProto: required uint64 num_bytes = 1, required string copy_kind = 2,
    required string src_kind = 3, required string dst_kind = 4
message MemsetEventInfoProto: required uint64 num_bytes = 1, required string memory_kind = 2, required uint32 value = 3
message HostTraceEventProto: required string name = 1, required TracerEventTypeProto type = 2,
    required uint64 start_ns = 3, required uint64 end_ns = 4, required uint64 process_id = 5,
    required uint64 thread_id = 6
message MemTraceEventProto: required uint64 timestamp_ns = 1, required TracerMemEventTypeProto type = 2,
    required uint64 addr = 3, required uint64 process_id = 4, required uint64 thread_id = 5,
    required int64 increase_bytes = 6, required string place = 7, required uint64 current_allocated = 8,
    required uint64 current_reserved = 9, required uint64 peak_allocated = 10, required uint64 peak_reserved = 11
message Shape: repeated uint64 size = 1
message ShapeVector: repeated Shape shapes = 1
message InputShapes: repeated string key = 1, repeated ShapeVector shape_vecs = 2
message DtypeVector: repeated string dtype = 1
message Dtypes: repeated string key = 1, repeated DtypeVector dtype_vecs = 2
message OperatorSupplementEventProto: required uint64 timestamp_ns = 1, required string op_type = 2,
    required uint64 process_id = 3, required uint64 thread_id = 4, required InputShapes input_shapes = 5,
    required Dtypes dtypes = 6, required string callstack = 7, required uint64 op_id = 8
message CudaRuntimeTraceEventProto: required string name = 1, required uint64 start_ns = 2, required uint64 end_ns = 3,
    required uint64 process_id = 4, required uint64 thread_id = 5, required uint32 correlation_id = 6,
    required uint32 callback_id = 7
message DeviceTraceEventProto: required string name = 1, required TracerEventTypeProto type = 2,
    required uint64 start_ns = 3, required uint64 end_ns = 4, required uint64 device_id = 5,
    required uint64 context_id = 6, required uint64 stream_id = 7, required uint32 correlation_id = 8,
    optional KernelEventInfoProto kernel_info = 9, optional MemcpyEventInfoProto memcpy_info = 10,
    optional MemsetEventInfoProto memset_info = 11
message OperatorSupplementEventNodeProto: required OperatorSupplementEventProto op_supplement_event = 1
message MemTraceEventNodeProto: required MemTraceEventProto mem_event = 1
message DeviceTraceEventNodeProto: required DeviceTraceEventProto device_event = 1
message CudaRuntimeTraceEventNodeProto: required CudaRuntimeTraceEventProto runtime_trace_event = 1,
    repeated DeviceTraceEventNodeProto device_nodes = 2
message HostTraceEventNodeProto: required int64 id = 1, required int64 parentid = 2,
    required HostTraceEventProto host_trace_event = 3, repeated CudaRuntimeTraceEventNodeProto runtime_nodes = 4,
    repeated MemTraceEventNodeProto mem_nodes = 5, repeated OperatorSupplementEventNodeProto op_supplement_nodes = 6
message ThreadNodeTreeProto: required uint64 thread_id = 1, repeated HostTraceEventNodeProto host_nodes = 2
message ExtraInfoMap: required string key = 1, required string value = 2
message DevicePropertyProto: required uint32 id = 1, required string name = 2, required uint64 total_global_memory = 3,
    required uint32 compute_major = 4, required uint32 compute_minor = 5, required uint32 max_threads_per_block = 6,
    required uint32 max_threads_per_multiprocessor = 7, required uint32 regs_per_block = 8,
    required uint32 regs_per_multiprocessor = 9, required uint32 warp_size = 10,
    required uint64 shared_memory_per_block = 11, required uint64 shared_memory_per_multiprocessor = 12,
    required uint32 sm_count = 13, required uint64 shared_memory_per_block_optin = 14
message NodeTreesProto: required string version = 1, required uint32 span_index = 2,
    repeated ThreadNodeTreeProto thread_trees = 3, repeated ExtraInfoMap extra_info = 4,
    repeated DevicePropertyProto device_property = 5
"""


def profile() -> Any:
    """Return the class of ``paddle.platform.proto.Profile``."""
    return messages("paddle.platform.proto", PROFILE)("Profile")


def node_trees() -> Any:
    """Return the class of ``paddle.platform.NodeTreesProto``."""
    return messages("paddle.platform", NODE_TREES)("NodeTreesProto")


@cache
def messages(package: str, text: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    enums, messages = {}, {}
    for line in text.replace("\n    ", " ").strip().splitlines():
        kind, rest = line.split(" ", 1)
        name, body = rest.split(":", 1)
        (enums if kind == "enum" else messages)[name] = body
    for name, body in enums.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(body.split()):
            enum.value.add(name=value, number=number)
    for name, body in messages.items():
        message = file.message_type.add(name=name)
        for field in body.split(","):
            label, kind, field_name, _, number = field.split()
            added = message.field.add(name=field_name, number=int(number), label=_LABELS[label])
            if kind in _TYPES:
                added.type = _TYPES[kind]
            else:
                added.type = 14 if kind in enums else 11
                added.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
