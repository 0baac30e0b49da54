"""Numbers as text and as bytes: the same bits back, each wrong line named, NaN and infinity found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import numbers
from plugml.shm_protocol.info import Info

BOOT = "0" * 32
INFO = Info.of(JobSpec("j", 1, (TableSpec("w", (3,)), TableSpec("b", (2,), dtype="f64"), TableSpec("n", (2,), dtype="i64", optimizer="add"))), 0, 1, BOOT, 0)
GOOD = b"1\n-2.5\n3e-3\n.5\n1e300\n-7\n9223372036854775807\n"
F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
F64 = st.floats(allow_nan=False, allow_infinity=False)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def parse(info: Info, text: bytes, buffer: np.ndarray) -> None:
    numbers.parse_text(text, numbers.dense_series(info.dense, buffer), "grad.txt")


def format_(info: Info, buffer: np.ndarray) -> bytes:
    return numbers.format_text(series.values for series in numbers.dense_series(info.dense, buffer))


def check(info: Info, buffer: np.ndarray) -> None:
    """As for servers that keep the program's kind of numbers."""
    for series in numbers.dense_series(info.dense, buffer):
        numbers.store(series, series.values)


def filled() -> np.ndarray:
    buffer = numbers.aligned(INFO.cap_grad)
    parse(INFO, GOOD, buffer)
    return buffer


def refused(text: bytes) -> RequestError:
    with pytest.raises(RequestError) as error:
        parse(INFO, text, numbers.aligned(INFO.cap_grad))
    return error.value


def test_buffers_start_on_a_cache_line() -> None:
    for nbytes in (1, 63, 64, 4096, 100_000):
        buffer = numbers.aligned(nbytes)
        assert buffer.ctypes.data % 64 == 0 and buffer.nbytes == nbytes and not buffer.any()


def test_text_goes_where_the_tables_lie() -> None:
    buffer = filled()
    assert [numbers.view(buffer, table).tolist() for table in INFO.dense] == [
        [1.0, -2.5, float(np.float32(3e-3))], [0.5, 1e300], [-7, 9223372036854775807],
    ]  # fmt: skip


@given(arrays("<f4", 3, elements=F32), arrays("<f8", 2, elements=F64), arrays("<i8", 2, elements=I64))
def test_what_is_written_as_text_reads_back_bit_for_bit(w: np.ndarray, b: np.ndarray, n: np.ndarray) -> None:  # SPEC 3.10
    buffer = numbers.aligned(INFO.cap_grad)
    for table, values in zip(INFO.dense, (w, b, n)):
        numbers.view(buffer, table)[:] = values
    again = numbers.aligned(INFO.cap_grad)
    parse(INFO, format_(INFO, buffer), again)
    assert again.tobytes() == buffer.tobytes()


def test_many_numbers_are_formatted_in_pieces() -> None:
    info = Info.of(JobSpec("j", 1, (TableSpec("w", (200_001,)),)), 0, 1, BOOT, 0)
    values = np.random.default_rng(3).normal(size=200_001).astype("<f4")
    text = format_(info, values)
    assert text.count(b"\n") == 200_001
    again = numbers.aligned(info.cap_grad)
    parse(info, text, again)
    assert again.tobytes() == values.tobytes()
    assert len(text) <= numbers.text_bytes_max(info.elements)


@pytest.mark.parametrize("text", [GOOD[:-1], GOOD.replace(b"\n", b"\r\n"), GOOD.replace(b"-2.5", b"  -2.5\t"), GOOD.replace(b"1\n", b"+1\n", 1)])
def test_ends_of_lines_and_blanks_do_not_matter(text: bytes) -> None:  # SPEC 3.7 3.8
    buffer = numbers.aligned(INFO.cap_grad)
    parse(INFO, text, buffer)
    assert buffer.tobytes() == filled().tobytes()


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        (b"-2.5", b"-2,5", Code.FORMAT, "line 2 of grad.txt: '-2,5' is no number; the decimal point is '.', run the program with LC_NUMERIC=C"),
        (b"-2.5", b"two", Code.FORMAT, "line 2 of grad.txt: 'two' is no number"),
        (b"-2.5", b"", Code.FORMAT, "line 2 of grad.txt: '' is no number"),
        (b"-2.5", b"1 2", Code.FORMAT, "line 2 of grad.txt: '1 2' is no number; write one number a line"),
        (b"-2.5", b"1_0", Code.FORMAT, "line 2 of grad.txt: '1_0' is no number"),
        (b"-2.5", b"0x10", Code.FORMAT, "line 2 of grad.txt: '0x10' is no number"),
        (b"-2.5", b"\xff", Code.FORMAT, "line 2 of grad.txt: '\ufffd' is no number"),
        (b"-2.5", b"1\x002", Code.FORMAT, "line 2 of grad.txt: '1\\x002' is no number"),
        (b"-2.5", b"NA", Code.NONFINITE, "line 2 of grad.txt: 'NA' is no value; nothing was applied"),
        (b"-2.5", b"1e39", Code.RANGE, "line 2 of grad.txt: '1e39' does not fit into f32 (table w); nothing was applied"),
        (b"-2.5", b"-1e400", Code.RANGE, "line 2 of grad.txt: '-1e400' does not fit into f32 (table w); nothing was applied"),
        (b"1e300", b"1e400", Code.RANGE, "line 5 of grad.txt: '1e400' does not fit into f64 (table b); nothing was applied"),
        (b".5\n1e300", b"inf\n1e400", Code.RANGE, "line 5 of grad.txt: '1e400' does not fit into f64 (table b); nothing was applied"),
        (b"-7", b"7.0", Code.FORMAT, "line 6 of grad.txt: '7.0' is no whole number (table n is i64)"),
        (b"-7", b"1_0", Code.FORMAT, "line 6 of grad.txt: '1_0' is no whole number (table n is i64)"),
        (b"-7", b"9" * 19, Code.RANGE, "line 6 of grad.txt: '9999999999999999999' does not fit into i64 (table n); nothing was applied"),
        (b"-7", b"9" * 5000, Code.RANGE, f"line 6 of grad.txt: '{'9' * 40}' does not fit into i64 (table n); nothing was applied"),
    ],
)
def test_a_wrong_line_is_named(old: bytes, new: bytes, code: Code, words: str) -> None:  # SPEC 3.8 3.9 12.3
    error = refused(GOOD.replace(old, new))
    assert (error.code, error.text) == (code, words)


@pytest.mark.parametrize("text", [b"", b"\n", GOOD + b"1\n", GOOD[2:], GOOD + b"\n"])
def test_another_number_of_lines_is_refused(text: bytes) -> None:  # SPEC 3.7
    error = refused(text)
    assert error.code is Code.SIZE and "7 are declared; nothing was applied" in error.text


@given(st.binary(max_size=60))
def test_any_text_is_numbers_or_a_request_error(text: bytes) -> None:
    info = Info.of(JobSpec("j", 1, (TableSpec("w", (2,)), TableSpec("n", (1,), dtype="i64", optimizer="add"))), 0, 1, BOOT, 0)
    buffer = numbers.aligned(info.cap_grad)
    for whole in (text, b"1\n" + text, b"1\n2\n" + text):
        try:
            parse(info, whole, buffer)
        except RequestError as error:
            assert error.code in (Code.SIZE, Code.FORMAT, Code.RANGE, Code.NONFINITE)


@pytest.mark.parametrize("size", [1, 5, 4096, 4097, 100_000])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_number_that_is_none_is_named(size: int, dtype: str, bad: float) -> None:
    info = Info.of(JobSpec("j", 1, (TableSpec("v", (3,)), TableSpec("w", (size,), dtype=dtype))), 0, 1, BOOT, 0)
    buffer = numbers.aligned(info.cap_grad)
    values = numbers.view(buffer, info.dense[1])
    check(info, buffer)
    for at in {0, size // 2, size - 1}:
        values[:] = 1.0
        values[at:] = bad
        with pytest.raises(RequestError) as error:
            check(info, buffer)
        assert error.value.code is Code.NONFINITE
        assert error.value.text == f"element {at} of table w is {bad}; nothing was applied"


@pytest.mark.parametrize("size", [8, 50_000])
def test_huge_and_denormal_numbers_are_finite(size: int) -> None:
    info = Info.of(JobSpec("j", 1, (TableSpec("w", (size,)),)), 0, 1, BOOT, 0)
    for value in (np.finfo(np.float32).max, -np.finfo(np.float32).max, np.float32(1e-45)):
        check(info, np.full(size, value, "<f4"))
    mixed = np.full(size, np.finfo(np.float32).max, "<f4")
    mixed[::2] *= -1
    check(info, mixed)


def test_whole_numbers_are_always_finite() -> None:
    info = Info.of(JobSpec("j", 1, (TableSpec("n", (4,), dtype="i64", optimizer="add"),)), 0, 1, BOOT, 0)
    check(info, np.full(4, -1, "<i8"))
