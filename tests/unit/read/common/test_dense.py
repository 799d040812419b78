from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.read.common.dense import distinct_rows, first_places

values = st.one_of(st.integers(-3, 3), st.integers(-(1 << 62), 1 << 62))


@given(st.lists(st.tuples(values, values, values), max_size=30))
def test_distinct_rows_come_as_they_occur_first(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[place] for row in rows], np.int64) for place in range(3)]
    first, number = distinct_rows(columns)
    distinct = list(dict.fromkeys(rows))
    assert [rows[place] for place in first] == distinct
    assert [distinct[index] for index in number] == rows


@given(st.lists(values, max_size=30), st.lists(values, max_size=30))
def test_first_places_are_where_a_search_finds_them(keys: list[int], wanted: list[int]) -> None:
    found = first_places(np.array(keys, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [keys.index(number) if number in keys else -1 for number in wanted]
