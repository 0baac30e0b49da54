"""The ctl page: one table, and everything that is made from it agrees with it."""

from __future__ import annotations

import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.core.errors import MEANINGS, Code, RequestError
from plugml.shm_protocol import generate, page
from plugml.shm_protocol.page import Constant, Logged, Moving, Result

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
CONSTANTS = st.builds(
    Constant, U64, U64, U64, U64, U64, st.integers(0, 255), st.integers(0, 255), U32, U64, st.binary(min_size=16, max_size=16),
    st.integers(0, 65535),
)  # fmt: skip
SOME = Constant(3, 10, 40, 40, 0, 1, 0, 2, 123, bytes(range(16)))


@given(CONSTANTS)
def test_the_constant_part_reads_back(constant: Constant) -> None:
    assert page.read_constant(page.new_page(constant)) == constant


@given(st.builds(Moving, U64, U64, st.integers(-5, 5), U64, st.integers(0, 16), U32, U64, U64, U32, U32))
def test_the_moving_part_reads_back(moving: Moving) -> None:
    whole = page.new_page(SOME, moving)
    assert page.read_moving(whole) == moving
    assert page.read_constant(whole) == SOME


@given(st.integers(0, page.CONSTANT_BYTES * 8 - 1))
def test_every_flipped_bit_of_the_constant_part_is_noticed(bit: int) -> None:
    damaged = bytearray(page.new_page(SOME))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RequestError) as refused:
        page.read_constant(bytes(damaged))
    assert refused.value.code is Code.VERSION


def test_a_greater_minor_version_is_accepted_and_another_major_refused() -> None:  # SPEC 7.11
    def with_version(major: int, minor: int) -> bytes:
        changed = bytearray(page.new_page(SOME))
        struct.pack_into("<HH", changed, 8, major, minor)
        struct.pack_into("<I", changed, 0x14, 0)
        struct.pack_into("<I", changed, 0x14, zlib.crc32(changed[: page.CONSTANT_BYTES]))
        return bytes(changed)

    assert page.read_constant(with_version(1, 9)) == SOME
    with pytest.raises(RequestError, match="ctl has layout 2, this program knows 1"):
        page.read_constant(with_version(2, 0))


@pytest.mark.parametrize("text", [b"", b"PLUGMLC1", bytes(4096), b"PLUGMLC1" + bytes(4088)])
def test_what_is_no_page_is_refused(text: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        page.read_constant(text)
    assert refused.value.code is Code.VERSION


def test_fields_lie_in_order_aligned_and_apart() -> None:
    end = 0
    for field in page.FIELDS:
        size = struct.calcsize("<" + field.code)
        assert field.offset >= end, field
        assert field.offset % size == 0, field
        end = field.offset + size * field.length
    assert end == page.PAGE_BYTES
    assert page.OFFSET["done_seq"] % 64 == 0
    assert page.OFFSET["result_even"] % 64 == page.OFFSET["result_odd"] % 64 == 0
    assert len(page.COUNTER_NAMES) <= page.COUNTERS


def test_packed_words_lie_where_the_table_says() -> None:  # SPEC 7.10
    whole = page.new_page(SOME, Moving(*range(1, 11)))
    names = ("done_seq", "cur_seq", "clock", "version", "status", "state", "agent_beat", "agent_id", "rep_word", "done_flags")
    for number, name in enumerate(names, 1):
        field = next(field for field in page.FIELDS if field.name == name)
        assert struct.unpack_from("<" + field.code, whole, field.offset)[0] == number, name
    for name, value in (("gen", 3), ("n", 10), ("cap_grad", 40), ("worker", 2), ("created", 123), ("page_len", 4096)):
        field = next(field for field in page.FIELDS if field.name == name)
        assert struct.unpack_from("<" + field.code, whole, field.offset)[0] == value, name


def test_two_results_take_turns() -> None:
    whole = bytearray(page.new_page(SOME))
    for result in (Result(7, 3, 11, 0, 1, 2.5, 7), Result(8, 4, 12, 5, 0, 0.0, 8)):
        at = page.result_offset(result.seq)
        whole[at : at + 64] = result.pack()
    assert page.read_result(bytes(whole), 7) == Result(7, 3, 11, 0, 1, 2.5, 7)
    assert page.read_result(bytes(whole), 8) == Result(8, 4, 12, 5, 0, 0.0, 8)
    with pytest.raises(RequestError, match="holds the result of request 8 where 6 was expected"):
        page.read_result(bytes(whole), 6)


@given(st.lists(st.builds(Logged, U32, U64, U64, st.text(alphabet="abc äß", max_size=300)), max_size=5))
def test_the_error_log_reads_back(entries: list[Logged]) -> None:  # SPEC 7.16
    whole = bytearray(page.new_page(SOME))
    for entry in entries:
        at = page.log_end(page.read_log(bytes(whole)))
        record = page.pack_logged(entry)
        if at + len(record) > page.LOG_END:
            break
        whole[at : at + len(record)] = record
    found = page.read_log(bytes(whole))
    for (_at, read), entry in zip(found, entries):
        text = entry.text.encode()[: page.LOG_TEXT_MAX].decode(errors="replace")
        assert read == entry._replace(text=text)


@given(st.binary(min_size=page.LOG_END - page.LOG_START, max_size=page.LOG_END - page.LOG_START))
def test_a_damaged_error_log_is_read_as_far_as_it_goes(log: bytes) -> None:
    whole = bytearray(page.new_page(SOME))
    whole[page.LOG_START : page.LOG_END] = log
    assert len(page.read_log(bytes(whole))) <= len(log) // page.LOG_HEAD_BYTES


def test_the_committed_header_and_the_tables_of_the_specification_are_up_to_date() -> None:
    assert generate.main(["--check"]) == 0


def test_the_specification_has_every_sentence_of_every_code() -> None:  # SPEC 8.1
    text = generate.SPEC.read_text()
    for code in Code:
        if code is not Code.OK:
            assert f"| {int(code)} | `{code.name}` | {MEANINGS[code].happened} | {MEANINGS[code].remedy} |" in text


def test_sentences_of_the_specification_are_numbered_once_and_in_order() -> None:
    numbers = [tuple(map(int, found)) for found in re.findall(r"^(\d+)\.(\d+) ", generate.SPEC.read_text(), re.MULTILINE)]
    assert numbers == sorted(set(numbers)) and len(numbers) > 80


@pytest.mark.parametrize(("compiler", "language"), [("gcc", "c11"), ("g++", "c++17")])
def test_a_compiler_agrees_with_the_layout(tmp_path: Path, require: Callable[[str], None], compiler: str, language: str) -> None:  # SPEC 7.10 7.14
    require(compiler)
    suffix = "c" if compiler == "gcc" else "cc"
    source = tmp_path / f"layout.{suffix}"
    source.write_text(
        '#include "plugml_shm.h"\n#include <stdio.h>\n'
        "#define CODE(number, word, happened, remedy) printf(\"%d %s %s\\n\", number, #word, happened);\n"
        "#define COUNTER(number, name, meaning) printf(\"%d %s\\n\", number, #name);\n"
        "int main(void) { PLUGML_CODES(CODE) PLUGML_COUNTERS(COUNTER) printf(\"%zu\\n\", sizeof(struct plugml_ctl)); return 0; }\n"
    )
    program = tmp_path / "layout"
    include = generate.HEADER.parent
    command = [compiler, f"-std={language}", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{include}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[: len(Code)] == [f"{int(code)} {code.name} {MEANINGS[code].happened}" for code in Code]
    assert lines[len(Code) : -1] == [f"{number} {name}" for number, (name, _about) in enumerate(page.COUNTER_NAMES)]
    assert lines[-1] == str(page.PAGE_BYTES)
