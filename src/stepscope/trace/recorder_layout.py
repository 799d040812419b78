"""Numbers of the native recorder's blocks and words; :mod:`stepscope.collect.torch.native_collector` explains them.

The standard library only: the training process imports this module.
"""

from __future__ import annotations

import struct
from enum import IntEnum

#: First bytes of a recorder's file.
MAGIC = b"SSR1\n"

#: Version of the format: from 2 on, there are ``LINE`` words; from 3 on, ``LAUNCH`` words and process groups.
VERSION = 3

#: Sorts of blocks, by their first byte.
FACTS, CLOCK, THREAD, WORDS, RATES = b"F", b"C", b"T", b"W", b"R"

#: After the sort and 7 bytes of zero: ticks, CLOCK_MONOTONIC in ns, ns since the Unix epoch, ± ns of ticks against
#: monotonic, ± ns of monotonic against epoch.
CLOCK_BLOCK = struct.Struct("<c7xQqqII")

#: After the sort and 7 bytes of zero. Pairs follow: ticks, and, as a double, the fraction of the operators that is
#: recorded from then on.
RATES_HEAD = struct.Struct("<c7x")
RATE = struct.Struct("<Qd")

#: After the sort and 3 bytes of zero: number of the thread; its name as UTF-8 follows.
THREAD_HEAD = struct.Struct("<c3xI")

#: After the sort and 3 bytes of zero: number of the thread, its chunk, place of the first word in the chunk, events
#: of this thread that were dropped just before the chunk, native thread id, ``threading.get_ident``, torch's thread
#: number (``at::RecordFunction::currentThreadId``). Words of 8 bytes follow.
WORDS_HEAD = struct.Struct("<c3xIIIIIQQ")


class Tag(IntEnum):
    """What a word is: its upper 4 bits. The lower 60 are its value."""

    END = 1
    BEGIN = 2
    NAME = 3
    INPUTS = 4
    FORWARD = 5
    IDENTITY = 6
    END_OF = 7
    DEPTH = 8
    LEVEL = 9
    MEMORY = 10
    VALUE = 11
    DEFINE = 12
    RAW = 13
    LINE = 14
    LAUNCH = 15


class Definition(IntEnum):
    """What a definition defines."""

    NAME = 1
    INPUTS = 2


class Input(IntEnum):
    """Kinds of inputs in the content of a definition."""

    OTHER = 0
    TENSOR = 1
    UNDEFINED = 2
    INTEGER = 3
    REAL = 4
    BOOLEAN = 5
    COMPLEX = 6
    TENSORS = 7
    LIST = 8
    CUT = 9
    GROUP = 10
    NESTED = 11


#: Lower bits of a LAUNCH word: place of the collective in its group, + 1; above them the number of the call.
PLACE_BITS = 28

#: Scopes in NAME words, as ``at::RecordScope`` of torch 2.13 numbers them; and those of Python function calls.
FUNCTION_SCOPE, BACKWARD_SCOPE, USER_SCOPE, PYTHON_SCOPE = 0, 1, 7, 15
