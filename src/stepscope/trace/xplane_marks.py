"""What the collector of JAX writes into XLA's recordings, and the reader takes out again.

The standard library only: the training process imports this module.
"""

from __future__ import annotations

#: Name of the event that says, as ``native_id``, which thread it lies on: XLA knows threads by numbers of its own.
THREAD_MARK = "stepscope:thread"
NATIVE_ID = "native_id"
