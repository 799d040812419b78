"""The packages of ``--as NAME``: every name that is replaced has one of ours."""

from __future__ import annotations

import pytest

from stepscope.compat.stand_ins import PACKAGES


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_has_one_of_ours(name: str) -> None:
    package = PACKAGES[name]
    for names in package.names.values():
        for ours in names.values():
            home, _, own = ours.rpartition(".")
            assert getattr(pytest.importorskip(home or package.home), own) is not None
