"""Events with any values in any place: both readers give the same tables, and never another exception."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from stepscope import native
from stepscope.read import read_files
from stepscope.read.chrome_json.event_schema import CLASS_OF_CATEGORY, FIELDS
from stepscope.trace.tables import Frames
from tests.sizes import SIZE

_SPELLINGS = sorted({spelling for fields in FIELDS.values() for item in fields for spelling in item.spellings})
_NAMES = [
    "aten::add",
    "ProfilerStep#3",
    "ProfilerStep*",
    "enumerate(DataLoader)#x",
    "Optimizer.step#SGD",
    "autograd::engine::evaluate_function: X",
    "record_param_comms",
    "nccl:all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "nn.Module: Linear_0",
    "file.py(3): f",
    "[memory]",
    "cudaLaunchKernel",
    "thread_name",
    'quote " and \\ and é\n',
    "",
]
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.integers(-(1 << 66), 1 << 66),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "7", "0x1f", "[]", "stream 7", "é"]),
)
_values = st.one_of(_scalars, st.lists(st.one_of(_scalars, st.lists(_scalars, max_size=3)), max_size=3))
_small = st.integers(0, 40)
_arguments = st.dictionaries(
    st.sampled_from([*_SPELLINGS, "anything"]), st.one_of(_small, _small, _small, _values), max_size=6
)
_events = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXXXXBEisfCMt")},
    optional={
        "cat": st.sampled_from(
            [*CLASS_OF_CATEGORY, "fwdbwd", "ac2g", "overhead", "cuda_profiler_range", "other", None]
        ),
        "name": st.one_of(st.sampled_from(_NAMES), st.sampled_from(_NAMES), _values),
        "pid": st.one_of(st.integers(0, 2), _scalars),
        "tid": st.one_of(st.integers(0, 2), _scalars),
        "ts": st.one_of(_small, _small, st.decimals(0, 1 << 43, places=3).map(float), _values),
        "dur": st.one_of(_small, _small, _values),
        "id": st.one_of(st.integers(0, 3), _scalars),
        "args": st.one_of(_arguments, _arguments, _arguments, _values),
    },
)


def _comparable(frames: Frames) -> Frames:
    return {name: frame.with_columns(pl.col(pl.Categorical).cast(pl.String)) for name, frame in frames.items()}


@pytest.mark.skipif(native.available() is not None, reason=str(native.available()))
@settings(max_examples=SIZE.examples(120))
@given(st.lists(_events, max_size=12))
def test_any_values_give_the_same_tables_with_and_without_c(events: list[dict[str, Any]]) -> None:
    # Given a document of events with anything in them
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}))
        # When it is read with and without the C library
        fast = _comparable(read_files([path]))
        patch.setenv("STEPSCOPE_NATIVE", "0")
        plain = _comparable(read_files([path]))
    # Then the tables are the same, and so are the losses
    for name, frame in plain.items():
        assert_frame_equal(fast[name], frame)
