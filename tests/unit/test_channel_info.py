"""The info file and the environment: round trips, bounds, and what a program is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.info import VARIABLES, Info, environment, parse_info, without
from plugml.shm_protocol.request import Request, Section

BOOT = "0123456789abcdef" * 2
SPEC = JobSpec("digits", 4, (TableSpec("w", (10, 7), order="F"), TableSpec("b", (3,), dtype="f64"), TableSpec("n", (2,), dtype="i64", optimizer="add")))
INFO = Info.of(SPEC, 2, 5, BOOT, 17, number=9)

TABLES = st.lists(
    st.builds(
        lambda name, shape, dtype, order: TableSpec(name, tuple(shape), dtype=dtype, order=order, optimizer="add"),
        st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
        st.lists(st.integers(1, 50), min_size=1, max_size=4),
        st.sampled_from(("f32", "f64", "i64")),
        st.sampled_from("CF"),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda table: table.name,
)


@given(TABLES, st.integers(0, 99), st.integers(1, 1 << 40), st.integers(0, 1 << 40))
def test_info_reads_back(tables: list[TableSpec], worker: int, gen: int, clock: int) -> None:
    info = Info.of(JobSpec("a.b-c", 100, tuple(tables)), worker, gen, BOOT, clock, number=3)
    assert parse_info(info.format()) == info
    assert info.elements == sum(math.prod(table.shape) for table in tables)


def test_the_text_is_what_the_specification_shows() -> None:  # SPEC 2.1 2.4 2.5 2.6
    assert INFO.format().splitlines() == [
        "version=1", "job=digits", "number=9", "worker=2", "workers=4", "gen=5", f"boot_id={BOOT}", "endian=little", "clock=17",
        f"seed={INFO.seed}", "count=75", "cap_grad=400", "cap_idx=0", "cap_param=400", "bell=fifo",
        "table=w kind=dense dtype=f32 order=F offset=0 count=70 shape=10,7",
        "table=b kind=dense dtype=f64 order=C offset=320 count=3 shape=3",
        "table=n kind=dense dtype=i64 order=C offset=384 count=2 shape=2",
    ]  # fmt: skip


def test_unknown_keys_are_passed_over() -> None:  # SPEC 2.2
    text = INFO.format().replace("table=w ", "table=w colour=red ") + "weather=fine\n"
    assert parse_info(text) == INFO


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("version=1", "version=2", Code.VERSION),
        ("version=1\n", "", Code.VERSION),
        ("endian=little", "endian=big", Code.VERSION),
        ("bell=fifo", "bell=drum", Code.VERSION),
        ("dtype=f32", "dtype=f16", Code.VERSION),
        ("job=digits", "job=../digits", Code.FORMAT),
        ("gen=5\n", "", Code.FORMAT),
        ("gen=5", "gen=-5", Code.FORMAT),
        ("gen=5", "gen=99999999999999999999", Code.FORMAT),
        ("gen=5", "gen", Code.FORMAT),
        ("offset=320", "offset=256", Code.FORMAT),
        ("offset=320", "offset=321", Code.FORMAT),
        ("count=70", "count=71", Code.FORMAT),
        ("cap_grad=400", "cap_grad=399", Code.FORMAT),
        ("order=F", "order=G", Code.FORMAT),
        ("kind=dense", "kind=liquid", Code.FORMAT),
        ("shape=10,7", "shape=10,x", Code.FORMAT),
        (f"boot_id={BOOT}", "boot_id=1", Code.FORMAT),
    ],
)
def test_a_wrong_info_is_refused(old: str, new: str, code: Code) -> None:  # SPEC 2.3 2.5
    text = INFO.format()
    assert old in text
    with pytest.raises(RequestError) as refused:
        parse_info(text.replace(old, new, 1))
    assert refused.value.code is code


@given(st.text(max_size=300))
def test_any_text_is_an_info_or_a_request_error(text: str) -> None:
    for whole in (text, INFO.format() + text, "table=" + text):
        try:
            parse_info(whole)
        except RequestError as error:
            assert error.code in (Code.FORMAT, Code.VERSION)


@given(st.data())
def test_any_changed_byte_is_an_info_or_a_request_error(data: st.DataObject) -> None:
    text = INFO.format()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + data.draw(st.integers(0, 3)) :]
    try:
        parse_info(changed)
    except RequestError as error:
        assert error.code in (Code.FORMAT, Code.VERSION)


def test_the_environment_tells_what_info_tells() -> None:  # SPEC 2.8
    variables = environment(INFO, "/dev/shm/x/digits.2.5", local_worker=1, local_workers=2, out="/tmp/o", plugml_version="0.1")
    assert tuple(variables) == VARIABLES
    assert variables["PLUGML_DIR"] == "/dev/shm/x/digits.2.5"
    assert variables["PLUGML_CLOCK"] == "17"
    assert variables["PLUGML_ELEMENTS"] == "75"
    assert variables["PLUGML_DTYPE"] == "mixed"
    assert Info.of(JobSpec("j", 1, (TableSpec("w", (2,), dtype="f64"),)), 0, 1, BOOT, 0).dtype == "f64"


def test_no_inherited_channel_reaches_a_program() -> None:
    assert without({name: "x" for name in VARIABLES} | {"PATH": "/bin"}) == {"PATH": "/bin"}


def test_seeds_fit_every_language_and_differ_between_workers_and_jobs() -> None:
    seeds = {Info.of(JobSpec("j", 50, (TableSpec("w", (2,)),), seed=seed), worker, 1, BOOT, 0).seed for worker in range(50) for seed in range(20)}
    assert len(seeds) > 990 and max(seeds) < 1 << 31


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (Request("step", 1, 0, n=74), Code.SIZE, "n=74, but the job's dense tables have 75 elements"),
        (Request("step", 1, 0, sections=(Section("v", 1, 1),)), Code.RANGE, "'v' is none of this job's; it has w, b, n"),
        (Request("step", 1, 0, sections=(Section("w", 1, 1),)), Code.FORMAT, "only sparse tables are named"),
    ],
)
def test_what_is_not_served_is_refused_before_any_file_is_touched(request_: Request, code: Code, words: str) -> None:  # SPEC 4.7
    with pytest.raises(RequestError) as refused:
        INFO.check(request_)
    assert refused.value.code is code and words in refused.value.text


def test_what_is_served_passes() -> None:
    for verb in ("init", "push", "pull", "pushpull", "step", "clock", "ping", "bye"):
        INFO.check(Request(verb, 1, 0, n=75, weight=2.0, text=True))
