from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.native.kineto import NotTokenized, Tokenizer
from stepscope.read.chrome_json import tokenizer as kineto_native
from stepscope.read.chrome_json.columns import Interner
from stepscope.read.chrome_json.decoded_values import codes, identifiers, integers, json_codes, times
from stepscope.read.chrome_json.event_schema import ABSENT, BAD

numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.tuples(st.integers(-(10**16), 10**16), st.text("0123456789", min_size=1, max_size=12)).map(
        "{0[0]}.{0[1]}".format
    ),
    st.tuples(st.integers(0, 10**6), st.integers(-5, 12)).map("{0[0]}e{0[1]}".format),
)


def expected(text: str) -> int:
    """Return the time by decimal arithmetic, which is slow and obvious."""
    value = int((Decimal(text) * 1000).quantize(Decimal(1), ROUND_HALF_UP))
    return value if abs(value) < 1 << 63 and value > BAD else BAD


@given(st.lists(numbers, min_size=1, max_size=20))
def test_times_are_what_decimal_arithmetic_says(texts: list[str]) -> None:
    assert times([msgspec.Raw(text.encode()) for text in texts]).tolist() == [expected(text) for text in texts]


@given(
    st.integers(0, 4).flatmap(
        lambda decimals: st.lists(
            st.one_of(st.just(""), st.tuples(st.integers(0, 10**16), st.text("0123456789", min_size=4, max_size=4))),
            max_size=20,
        ).map(lambda times: ["" if not time else f"{time[0]}.{time[1][:decimals]}".rstrip(".") for time in times])
    )
)
def test_times_of_one_spelling_are_read_in_bulk_with_the_same_result(texts: list[str]) -> None:
    wanted = [expected(text) if text else ABSENT for text in texts]
    assert times([msgspec.Raw(text.encode()) for text in texts]).tolist() == wanted


@given(numbers)
def test_the_tokenizer_gives_the_same_time_or_none(text: str) -> None:
    tokenizer = Tokenizer(kineto_native.description())
    try:
        tokenizer.tokenize(b'{"ts": %s}]' % text.encode(), last=True)
    except NotTokenized:
        return
    assert tokenizer.base()["ts"].tolist() == [expected(text)]


def test_times_that_are_none_are_told_from_those_that_are_not_there() -> None:
    sources = [b"", b"null", b"NaN", b'"12.5"', b'"x"', b"1e400", b"-0.0005", b'"a\nb"', b'"\xff"']
    found = times([msgspec.Raw(source) for source in sources]).tolist()
    assert found == [ABSENT, ABSENT, BAD, 12500, BAD, BAD, -1, BAD, BAD]


def test_no_times_are_no_times() -> None:
    assert len(times([])) == 0


def test_integers_too_large_are_counted_and_left_out() -> None:
    found, large = integers([1, None, 1 << 63, ABSENT, -(1 << 70)], unsigned=False)
    assert found.tolist() == [1, ABSENT, ABSENT, ABSENT, ABSENT]
    assert large == 2


def test_unsigned_integers_keep_their_bits() -> None:
    found, large = integers([(1 << 64) - 1, 5, 1 << 64], unsigned=True)
    assert found.tolist() == [-1, 5, ABSENT]
    assert large == 1


def test_identifiers_of_any_spelling_are_numbers() -> None:
    code = Interner().__getitem__
    found = identifiers([7, "7", "0x10", "a", "a", None, 1 << 80], code).tolist()
    assert found[:3] == [7, 7, 16]
    assert found[3] == found[4] > 1 << 61
    assert found[5:] == [ABSENT, ABSENT]
    assert identifiers([None, None], code).tolist() == [ABSENT, ABSENT]


def test_texts_are_numbered_as_they_come() -> None:
    interner = Interner()
    assert codes(["a", None, "b", "a"], interner.__getitem__).tolist() == [0, -1, 1, 0]
    raw = [msgspec.Raw(b"[1]"), msgspec.Raw(b"null"), msgspec.Raw(), msgspec.Raw(b"[1]")]
    found = json_codes(raw, interner.__getitem__)
    assert found[0] == found[3] >= 0
    assert found[1] == found[2] == -1
    assert list(interner)[found[0]] == b"[1]"
    assert np.array_equal(json_codes([msgspec.Raw()], interner.__getitem__), [-1])
