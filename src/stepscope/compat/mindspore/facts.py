"""``add_metadata`` and ``add_metadata_json``: what MindSpore accepts, and what it says of the rest."""

from __future__ import annotations

import logging
from sys import getsizeof

from stepscope.collect.start.profile import add_metadata, add_metadata_json
from stepscope.errors import UsageError

_LOG = logging.getLogger("stepscope")

#: Bytes of keys and values together, as MindSpore 2.10 has it; it measures its dictionary, this what is in it.
LIMIT = 100 << 20


class Facts:
    """The metadata of one profile, which goes into this window and all later ones."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def add(self, key: object, value: object, *, is_json: bool) -> None:
        """Record a fact, or say in the log why not. Nothing is raised, as documented."""
        if not isinstance(key, str) or not isinstance(value, str):
            _LOG.warning("The key and value of metadata must be string. Skip this metadata.")
            return
        size = getsizeof(key) + getsizeof(value)
        others = sum(self._sizes.values()) - self._sizes.get(key, 0)
        if others + size >= LIMIT:
            _LOG.warning("Too many metadata added. Skip this metadata")
            return
        try:
            add_metadata_json(key, value) if is_json else add_metadata(key, value)
        except UsageError:
            _LOG.warning("The metadata value must be json format string. Skip this metadata")
            return
        if key in self._sizes:
            _LOG.warning("%s is already saved as metadata, override it.", key)
        self._sizes[key] = size
