"""What a profile does between two steps, as a table: (action of the step that ended, action of the one that begins).

``Action.NONE`` stands for the time before ``start``, :data:`END` for the time after ``stop``. A recording is never
dropped: if a schedule goes from RECORD to something else, the recording is saved.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from stepscope.collect.schedule import Action


class WindowOperation(Enum):
    """What the session does; the values are the names of its methods."""

    PREPARE = "prepare"  # make the run directory, let collectors do what is slow
    START = "start"  # open the window
    SAVE = "save"  # close the window, hand the run to on_trace_ready
    DISCARD = "discard"  # a window that was prepared and never opened


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
