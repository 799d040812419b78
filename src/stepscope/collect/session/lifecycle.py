"""The operations of a profile between two steps, by the actions of the step that ended and of the one that begins.

``Action.NONE`` stands for the time before ``start``, :data:`END` for the time after ``stop``. A recording is never
dropped: if a schedule goes from RECORD to something else, the recording is saved.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from stepscope.collect.schedule import Action


class WindowOperation(Enum):
    """An operation on the session's window."""

    PREPARE = "prepare"  # make the run directory, and do the slow part of collectors
    START = "start"  # open the window
    SAVE = "save"  # close the window, and pass the run to on_trace_ready
    DISCARD = "discard"  # remove a window that was prepared but never opened


#: The other side of a transition when the profile stops.
END: Final = None

_PREPARE, _START, _SAVE, _DISCARD = WindowOperation
_NONE, _WARMUP, _RECORD, _RECORD_AND_SAVE = Action

TRANSITIONS: dict[tuple[Action, Action | None], tuple[WindowOperation, ...]] = {
    (_NONE, _NONE): (),
    (_NONE, _WARMUP): (_PREPARE,),
    (_NONE, _RECORD): (_PREPARE, _START),
    (_NONE, _RECORD_AND_SAVE): (_PREPARE, _START),
    (_NONE, END): (),
    (_WARMUP, _NONE): (_DISCARD,),
    (_WARMUP, _WARMUP): (),
    (_WARMUP, _RECORD): (_START,),
    (_WARMUP, _RECORD_AND_SAVE): (_START,),
    (_WARMUP, END): (_DISCARD,),
    (_RECORD, _NONE): (_SAVE,),
    (_RECORD, _WARMUP): (_SAVE, _PREPARE),
    (_RECORD, _RECORD): (),
    (_RECORD, _RECORD_AND_SAVE): (),
    (_RECORD, END): (_SAVE,),
    (_RECORD_AND_SAVE, _NONE): (_SAVE,),
    (_RECORD_AND_SAVE, _WARMUP): (_SAVE, _PREPARE),
    (_RECORD_AND_SAVE, _RECORD): (_SAVE, _PREPARE, _START),
    (_RECORD_AND_SAVE, _RECORD_AND_SAVE): (_SAVE, _PREPARE, _START),
    (_RECORD_AND_SAVE, END): (_SAVE,),
}
