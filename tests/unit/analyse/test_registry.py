from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyse import registry
from stepscope.trace import tables

EMPTY = tables.lazy(tables.complete({}))


@pytest.mark.parametrize("name", registry.RESULTS)
def test_every_result_of_empty_tables_is_empty_and_has_its_columns(name: str) -> None:
    result = registry.compute(name, EMPTY)
    if registry.RESULTS[name].extension == "json":
        assert result == {}
    else:
        assert isinstance(result, pl.DataFrame)
        assert result.is_empty()
        assert len(result.columns) > 4
