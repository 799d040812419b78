"""The format of pprof as its ``profile.proto`` defines it, for Google's library: an independent reader and writer."""

from __future__ import annotations

from typing import Any

from tests.paddle_schemas import messages

#: As in ``paddle_schemas``.
_PROFILE = """
message ValueType: optional int64 type = 1, optional int64 unit = 2
message Label: optional int64 key = 1, optional int64 str = 2, optional int64 num = 3, optional int64 num_unit = 4
message Sample: repeated uint64 location_id = 1, repeated int64 value = 2, repeated Label label = 3
message Line: optional uint64 function_id = 1, optional int64 line = 2
message Location: optional uint64 id = 1, optional uint64 mapping_id = 2, optional uint64 address = 3,
    repeated Line line = 4
message Function: optional uint64 id = 1, optional int64 name = 2, optional int64 system_name = 3,
    optional int64 filename = 4, optional int64 start_line = 5
message Profile: repeated ValueType sample_type = 1, repeated Sample sample = 2, repeated Location location = 4,
    repeated Function function = 5, repeated string string_table = 6, optional int64 time_nanos = 9,
    optional int64 duration_nanos = 10, optional ValueType period_type = 11, optional int64 period = 12,
    optional int64 default_sample_type = 14
"""


def profile() -> Any:
    """Return the class of ``perftools.profiles.Profile``."""
    return messages("perftools.profiles", _PROFILE)("Profile")
