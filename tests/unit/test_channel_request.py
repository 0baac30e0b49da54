"""Request lines and reply records: exact words, round trips, and nothing but `RequestError` for whatever a stranger writes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.core.errors import Code, RequestError
from plugml.shm_protocol.request import (
    COUNT_MAX,
    SECTIONED,
    SEQ_MAX,
    TIMED,
    VERBS,
    WEIGHT_MAX,
    Reply,
    Request,
    Section,
    format_reply,
    format_request,
    parse_reply,
    parse_request,
    seq_of,
)

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
SECTIONS = st.lists(
    st.builds(Section, NAMES, st.integers(0, COUNT_MAX), st.integers(0, COUNT_MAX)), max_size=6, unique_by=lambda item: item.table
).map(tuple)
OPTIONAL_COUNT = st.none() | st.integers(0, COUNT_MAX)
WEIGHTS = st.floats(0, WEIGHT_MAX, exclude_min=True, allow_subnormal=True)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    verb = draw(st.sampled_from(VERBS))
    seq = 0 if verb == "hello" else draw(st.integers(1, SEQ_MAX))
    timeout = draw(st.none() | st.integers(0, 1 << 31)) if verb in TIMED else None
    made = Request(
        verb, seq, draw(st.integers(0, SEQ_MAX)), draw(OPTIONAL_COUNT), draw(WEIGHTS), draw(st.booleans()), timeout,
        verb == "push" and draw(st.booleans()), draw(SECTIONS) if verb in SECTIONED else (),
    )  # fmt: skip
    sections = [s._replace(rows=s.rows * made.pushes, want=s.want * made.pulls) for s in made.sections]
    return made._replace(sections=tuple(sections))


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    code = draw(st.sampled_from(Code))
    small = st.integers(0, 999)  # so that everything fits into 63 bytes
    return Reply(
        code is Code.OK, draw(small), draw(small), draw(st.none() | small), draw(st.none() | small), code, draw(st.none() | st.integers(0, 99)),
        code is Code.OK and draw(st.booleans()), draw(st.none() | st.integers(0, 9)), draw(st.none() | st.integers(0, 99)),
    )  # fmt: skip


@given(requests())
def test_a_request_reads_back_as_it_was_written(request: Request) -> None:
    line = format_request(request)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert parse_request(line[:-1]) == request
    assert seq_of(line) == request.seq


@given(replies())
def test_a_reply_reads_back_as_it_was_written(reply: Reply) -> None:  # SPEC 5.3 6.6
    record = format_reply(reply)
    assert len(record) == 64 and record[-1:] == b"\n" and b"\n" not in record[:-1]
    assert parse_reply(record) == reply


@given(st.integers(0, SEQ_MAX), st.integers(0, SEQ_MAX), st.sampled_from(Code), st.booleans())
def test_a_reply_with_huge_numbers_keeps_what_matters(seq: int, clock: int, code: Code, stop: bool) -> None:  # SPEC 6.8
    reply = Reply(code is Code.OK, seq, clock, (1 << 64) - 1, SEQ_MAX, code, SEQ_MAX, stop, rows=SEQ_MAX)
    record = format_reply(reply)
    assert len(record) == 64
    read = parse_reply(record)
    assert (read.ok, read.seq, read.clock, read.code, read.stop) == (reply.ok, seq, clock, code, stop and reply.ok)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode()))
def test_any_bytes_are_a_request_or_a_request_error(line: bytes) -> None:
    try:
        request = parse_request(line)
    except RequestError as error:
        assert error.code in (Code.FORMAT, Code.RANGE) and error.text
    else:
        assert parse_request(format_request(request)[:-1]) == request
    assert seq_of(line) is None or 0 <= (seq_of(line) or 0) <= SEQ_MAX


WORDS = st.sampled_from([*VERBS, "1", "0", "-1", "18446744073709551616", "n=", "n=4", "n=-4", "w=1e400", "w=nan", "w=1_0", "fmt=text", "t=9", "k=1", "table=w", "table=..", "=", "x=1"])  # fmt: skip


@given(st.lists(WORDS, max_size=9).map(lambda words: " ".join(words).encode()))
def test_any_words_are_a_request_or_a_request_error(line: bytes) -> None:
    try:
        parse_request(line)
    except RequestError as error:
        assert error.code in (Code.FORMAT, Code.RANGE)


@given(st.binary(max_size=80))
def test_any_record_is_a_reply_or_a_request_error(record: bytes) -> None:
    try:
        parse_reply(record)
    except RequestError as error:
        assert error.code in (Code.FORMAT, Code.RANGE)


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        (b"", Code.FORMAT, "'' has 0 words; a request is <verb> <seq> <clock> [key=value ...]"),
        (b"step 1", Code.FORMAT, "'step 1' has 2 words; a request is <verb> <seq> <clock> [key=value ...]"),
        (b"stepp 1 0", Code.FORMAT, "unknown verb 'stepp'; known are hello, init, push, pull, pushpull, step, clock, next, ping, bye"),
        (b"step x 0", Code.FORMAT, "seq 'x' is no whole number from 0 on"),
        (b"step -1 0", Code.FORMAT, "seq '-1' is no whole number from 0 on"),
        (b"step 1 0.5", Code.FORMAT, "clock '0.5' is no whole number from 0 on"),
        (b"step 9999999999999999999 0", Code.RANGE, "seq 9999999999999999999 is above 9223372036854775807"),
        (b"step 0 0", Code.FORMAT, "seq 0 belongs to hello; the first step of a channel has seq 1"),
        (b"hello 3 0", Code.FORMAT, "hello has seq 0, not 3"),
        (b"step 1 0 4", Code.FORMAT, "'4' is no key=value"),
        (b"step 1 0 m=4", Code.FORMAT, "unknown key 'm'; known are n, w, fmt, t, async, table, k, want"),
        (b"step 1 0 n=4 n=4", Code.FORMAT, "n= is given twice"),
        (b"step 1 0 n=4.0", Code.FORMAT, "n '4.0' is no whole number from 0 on"),
        (b"step 1 0 w=1,5", Code.FORMAT, "w='1,5' is no number (digits, with '.' for the decimal point)"),
        (b"step 1 0 w=1e300", Code.RANGE, "w='1e300': a weight is from 0 to 2^53"),
        (b"step 1 0 w=nan", Code.FORMAT, "w='nan' is no number (digits, with '.' for the decimal point)"),
        (b"step 1 0 fmt=csv", Code.FORMAT, "fmt='csv'; use fmt=text or fmt=raw"),
        (b"step 1 0 async=yes", Code.FORMAT, "async='yes'; use async=1 or leave it out"),
        (b"step 1 0 k=4", Code.FORMAT, "k= stands before any table="),
        (b"step 1 0 table=w table=w", Code.FORMAT, "table=w is given twice"),
        (b"step 1 0 table=../w", Code.FORMAT, "table='../w' is no name of a table"),
        (b"step 1 0 \xff", Code.FORMAT, "byte 9 of the request line is 0xff, which is not ASCII"),
        (b"step 1 0 " + b"x" * 4090, Code.FORMAT, "the request line is longer than 4095 bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(line: bytes, code: Code, text: str) -> None:  # SPEC 4.1 4.4 4.5 4.7 4.8
    with pytest.raises(RequestError) as refused:
        parse_request(line)
    assert (refused.value.code, refused.value.text) == (code, text)


def test_blanks_between_words_do_not_matter() -> None:
    assert parse_request(b"  step  3\t2   n=4 \r") == Request("step", 3, 2, n=4)


def test_a_later_agent_may_say_more_in_a_reply() -> None:  # SPEC 6.8
    record = b"ok 3 2 v=9 mood=good".ljust(63) + b"\n"
    assert parse_reply(record) == Reply(True, 3, 2, 9)


def test_weights_keep_every_bit() -> None:
    weight = math.nextafter(1.0, 2.0)
    assert parse_request(format_request(Request("push", 1, 0, weight=weight))[:-1]).weight == weight


@pytest.mark.parametrize("line", [b"step 7 x", b"nonsense 7", b"step 7"])
def test_a_refusal_finds_the_seq_to_answer_to(line: bytes) -> None:
    assert seq_of(line) == 7


@pytest.mark.parametrize("line", [b"", b"step", b"step x 0", b"step 99999999999999999999 0", b"\x00\x00", "step ٣ 0".encode()])
def test_a_line_without_a_seq_has_none(line: bytes) -> None:
    assert seq_of(line) is None


def test_a_line_that_would_be_too_long_is_not_written() -> None:
    sections = tuple(Section(f"table{number:04}", 1, 1) for number in range(400))
    with pytest.raises(RequestError, match="4095 is the most"):
        format_request(Request("step", 1, 0, sections=sections))


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("step 1 0 n=99999999999999999999", Code.RANGE, "n 99999999999999999999 is above 4611686018427387904"),
        ("step 1 0 n=" + "9" * 4000, Code.RANGE, "is above"), ("step 1 0 t=4294967296", Code.RANGE, "t 4294967296 is above 2147483648"),
        ("step 1 0 w=1e9999", Code.RANGE, "a weight is from 0 to 2^53"),
        ("push 1 0 table=e k=99999999999999999999", Code.RANGE, "k 99999999999999999999 is above"), ("step 1 0 n=-1", Code.FORMAT, "is no whole number"),
        ("step 1 0 n=" + "9" * 40 + "x", Code.FORMAT, "is no whole number"), ("99 1 0", Code.FORMAT, "unknown verb"), ("push " + "9" * 4000 + " 0", Code.RANGE, "seq 999"),
    ],
)  # fmt: skip
def test_a_number_that_is_too_large_is_no_other_kind_of_mistake(line: str, code: Code, words: str) -> None:  # SPEC 4.7 4.8
    with pytest.raises(RequestError) as refused:
        parse_request(line.encode())
    assert refused.value.code is code and words in refused.value.text


@pytest.mark.parametrize("verb", VERBS)
def test_each_key_has_its_verbs(verb: str) -> None:  # SPEC 4.7 4.13
    head = f"{verb} {0 if verb == 'hello' else 1} 0"
    allowed = {
        "t=5": {"push", "pull", "pushpull", "step", "clock"}, "async=1": {"push"}, "async=0": {"push"}, "table=e": {"push", "pull", "pushpull", "step"},
        "table=e k=1": {"push", "pushpull", "step"}, "table=e want=1": {"pull", "pushpull", "step"}, "table=e k=0 want=0": {"push", "pull", "pushpull", "step"},
        "table=e k=1 want=2 table=f": {"pushpull", "step"},
    }  # fmt: skip
    for words, verbs in allowed.items():
        try:
            request = parse_request(f"{head} {words}".encode())
        except RequestError as error:
            assert error.code is Code.FORMAT and verb not in verbs, words
        else:
            assert verb in verbs, words
            assert parse_request(format_request(request)[:-1]) == request


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("table=e k=1 k=1", "k= is given twice for table=e"), ("table=e want=1 k=2 want=1", "want= is given twice for table=e"), ("k=1 table=e", "k= stands before any table="),
        ("table=e table=e", "table=e is given twice"), ("table=e k=1.5", "k '1.5' is no whole number"), ("t=5 t=6", "t= is given twice"), ("table=", "table='' is no name"),
    ],
)  # fmt: skip
def test_a_section_says_each_thing_once(words: str, text: str) -> None:  # SPEC 4.12 4.7
    with pytest.raises(RequestError, match=text):
        parse_request(f"step 1 0 {words}".encode())


def test_sections_read_in_their_order() -> None:  # SPEC 4.12
    assert parse_request(b"step 1 0 table=e k=2 want=3 table=f want=1 n=10 table=g").sections == (Section("e", 2, 3), Section("f", 0, 1), Section("g", 0, 0))
    assert parse_request(b"step 1 0 n=1 table=e k=1").takes_dense and parse_request(b"step 1 0").takes_dense
    assert not parse_request(b"step 1 0 table=e k=1").takes_dense


def test_a_reply_drops_what_matters_least_first() -> None:  # SPEC 6.8 6.4
    whole = Reply(True, 1 << 60, 1 << 60, 5, 6, lag=7, stop=True, rows=8)
    assert parse_reply(format_reply(whole._replace(seq=1, clock=2))) == whole._replace(seq=1, clock=2)
    left = [parse_reply(format_reply(whole._replace(version=version, n=n, rows=rows))) for version, n, rows in ((5, 6, 88888), (5, 66666666, 88888), (5 << 50, 1 << 60, 8))]
    assert [(reply.version, reply.n, reply.rows, reply.lag) for reply in left] == [(5, 6, None, None), (5, None, None, None), (None, None, None, None)]
