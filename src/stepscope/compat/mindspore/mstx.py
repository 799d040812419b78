"""``mstx``: marks and ranges with domains, recorded on any device.

MindSpore's own functions are no-ops unless an Ascend library is loaded. Here marks and ranges are recorded while a
profile runs, however it was started; otherwise the three functions are no-ops, as in MindSpore.
"""

from __future__ import annotations

import logging
import sys

from stepscope.collect.annotations import close_range, mark, open_range, recording
from stepscope.collect.session.session import running_options

_LOG = logging.getLogger("stepscope")

_DEFAULT = "default"


class mstx:
    """Marks moments and ranges of the program, grouped by domains.

    ::

        mstx.mark("train start")
        number = mstx.range_start("epoch", domain="loop")
        train()
        mstx.range_end(number, domain="loop")

    A wrong argument is logged, not raised. Do not use it in a compiled ``construct``.
    """

    @staticmethod
    def mark(message: str, stream: object = None, domain: str = _DEFAULT) -> None:
        """Mark a moment.

        Args:
            message: Its name.
            stream: A ``mindspore.runtime.Stream``; on a CPU the mark is recorded on the calling thread.
            domain: Its domain.
        """
        if recording() and _valid("mark", message, stream, domain) and _wanted(domain):
            mark(message, domain=domain)

    @staticmethod
    def range_start(message: str, stream: object = None, domain: str = _DEFAULT) -> int:
        """Begin a range; any thread may end it, in any order. One that is left open ends with the window.

        Args:
            message: Its name.
            stream: A ``mindspore.runtime.Stream``; on a CPU the range is recorded on the calling thread.
            domain: Its domain.

        Returns:
            Its number for :meth:`range_end`; 0 if nothing is being recorded.
        """
        if recording() and _valid("range_start", message, stream, domain) and _wanted(domain):
            return open_range(message, {"domain": domain})
        return 0

    @staticmethod
    def range_end(range_id: int, domain: str = _DEFAULT) -> None:
        """End a range.

        Args:
            range_id: What :meth:`range_start` returned; 0 is ignored.
            domain: Its domain.
        """
        if not recording() or (type(range_id) is int and range_id == 0):
            return
        if type(range_id) is not int or range_id < 0:
            _LOG.warning("Invalid range_id for mstx.range_end func. Please input return value from mstx.range_start.")
        elif _valid_domain("range_end", domain):
            close_range(range_id)


def _valid(function: str, message: object, stream: object, domain: object) -> bool:
    """Return whether the arguments are valid; if not, log MindSpore's line."""
    if not message or not isinstance(message, str):
        _LOG.warning("Invalid message for mstx.%s func. Please input valid message string.", function)
        return False
    if not _valid_domain(function, domain):
        return False
    kind = getattr(sys.modules.get("mindspore.runtime"), "Stream", None)
    if stream and not (isinstance(kind, type) and isinstance(stream, kind)):
        _LOG.warning(
            "Invalid stream for mstx.%s func. Expected mindspore.runtime.Stream but got %s.", function, type(stream)
        )
        return False
    return True


def _valid_domain(function: str, domain: object) -> bool:
    if isinstance(domain, str) and domain:
        return True
    _LOG.warning("Invalid domain name for mstx.%s func. Please input str and can not be empty.", function)
    return False


def _wanted(domain: str) -> bool:
    """Return whether the profile that runs records this domain."""
    options = running_options()
    if options is None:
        return True
    if options.mstx_domain_include:
        return domain in options.mstx_domain_include
    return domain not in options.mstx_domain_exclude
